"""Day-to-day operation of pipelines: backfills, plans, pictures, who runs what."""
