"""The `/v1/api` contract: consumer groups, logins and tokens."""
