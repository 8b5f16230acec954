"""Release notes from a small markup."""
