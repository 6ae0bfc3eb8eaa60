"""Measuring: loads for any OpenAI-compatible server, whole runs in process, single ops and steps (`octavo bench`)."""
