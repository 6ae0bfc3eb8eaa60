"""Wishes (`EngineArgs`) become a frozen configuration (`EngineConfig`) once, at start."""
