"""Fuzzing of the sidecar's HTTP calls: schemathesis makes them from docs/openapi.json, a real sidecar answers."""
