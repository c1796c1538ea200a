"""Placeholder until the tables are written."""

from pathlib import Path


def write(folder: Path) -> None: ...
