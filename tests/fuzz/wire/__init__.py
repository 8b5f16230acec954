"""Fuzzing of the sidecar's HTTP calls: schemathesis generates them from docs/openapi.json, a real sidecar answers."""
