"""Errors as a client sees them: a status, a type for programs, a message for people; never a traceback."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from afaf.errors import AfafError, CapacityError, DataError, DeviceError, FileError, RunError, WriteError
from afaf.explain import explained

NAMES = {404: "not_found", 405: "method_not_allowed"}


class Refused(Exception):
    """A request that is not carried out."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.kind, self.message, self.headers = status, kind, message, headers


def refusal(error: Exception) -> Refused:
    """Convert any error to an answer. Faults of this program or its disk give no details to the client."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, HTTPException):
        return Refused(error.status_code, NAMES.get(error.status_code, "http"), str(error.detail))
    known = explained(error)
    if known is None or isinstance(known, (WriteError, FileError)) or isinstance(error, OSError):
        message = "the model could not be read or written" if known else "a fault of the server"
        return Refused(500, "internal", f"{message}; its log says more")
    return Refused(*described(known))


def described(error: AfafError) -> tuple[int, str, str]:
    """Status, type and message of an error that the client can correct."""
    if isinstance(error, DeviceError):
        return 503, "memory", str(error)
    if isinstance(error, CapacityError):
        return 409, "full", str(error)
    if isinstance(error, RunError):
        return 409, "conflict", str(error)
    return 422, "data" if isinstance(error, DataError) else "invalid", str(error)


def response(refused: Refused) -> JSONResponse:
    body = {"error": {"type": refused.kind, "message": refused.message}}
    return JSONResponse(body, refused.status, headers=dict(refused.headers or {}))
