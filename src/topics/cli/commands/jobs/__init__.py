"""Commands about jobs that come by themselves."""
