"""Addresses as they are written in front of a port."""

from __future__ import annotations

from typing import Any


def endpoint(address: str, port: int | str) -> str:
    """ADDRESS:PORT; an IPv6 address stands in brackets, without which its last group would be read as the port."""
    text = str(address).strip("[]")
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


class FilterModule:
    """Ansible's hook."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        return {"endpoint": endpoint}
