"""The string formats that are enforced, and how.

The calendar ones are expressions of our own, tighter than RFC 3339 where common parsers are: no leap second, no year 0,
no 29 February outside leap years. The others are the matcher's.
"""

from __future__ import annotations

_LONG_MONTH = r"(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_SHORT_MONTH = r"(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_FEBRUARY = r"02-(?:0[1-9]|1[0-9]|2[0-8])"
_MONTH_DAYS = rf"(?:{_LONG_MONTH}|{_SHORT_MONTH}|{_FEBRUARY})"
_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = rf"(?:{_YEAR}-{_MONTH_DAYS}|{_LEAP_YEAR}-02-29)"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

OWN_FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
}
"""Format to an anchored expression."""

MATCHER_FORMATS = frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})

MAX_HOSTNAME_CHARS = 253
"""RFC 1123, section 2.1."""

KNOWN_FORMATS = tuple(sorted({*OWN_FORMATS, *MATCHER_FORMATS}))
