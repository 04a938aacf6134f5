"""Times as numbers: numbers, dates, durations and labels such as `day 2`, read by one set of rules.

- A number stands for itself. Whole numbers that are all calendar dates (20240227) are ambiguous,
  and rejected.
- A date (ISO text, datetime) counts from the first of its series, in the largest of days, hours,
  minutes and seconds that is not longer than the shortest interval. Dates without a zone are UTC.
- A label holds one number and a unit or name (`3h`, `day 2`, `D2`, `E8.5`). A hyphen after a word
  is not a minus (`day-2` is 2); one after a space or at the beginning is (`day -2` is -2).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._types import Array
from thalweg.errors import InputError

Kind = Literal["number", "date", "label"]

_MICROSECONDS = {
    "days": 86_400_000_000,
    "hours": 3_600_000_000,
    "minutes": 60_000_000,
    "seconds": 1_000_000,
    "milliseconds": 1000,
    "weeks": 7 * 86_400_000_000,
}
_UNITS = {
    **dict.fromkeys(("d", "day", "days"), "days"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "hours"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "minutes"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "seconds"),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), "milliseconds"),
    **dict.fromkeys(("w", "wk", "week", "weeks"), "weeks"),
    **dict.fromkeys(("mo", "month", "months"), "months"),
    **dict.fromkeys(("y", "yr", "year", "years"), "years"),
}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DIGITS = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_MONTH = re.compile(r"\d{4}-\d{2}")
_FORMS = "a number, an ISO date such as 2024-03-01, or a label with one number such as 'day 2'"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TimeScale:
    """The meaning of a time as a number: its unit, and for dates the moment of time 0.

    Parameters
    ----------
    unit : str
        `"days"`, `"hours"`, ..., or the word of the labels; empty for plain numbers.
    origin : str
        The ISO date of time 0, if times are dates.

    >>> numbers, scale = read_times(["2024-02-28", "2024-03-01"])
    >>> numbers, str(scale), scale.labels([0, 2.5])
    (array([0., 2.]), 'days since 2024-02-28', ['2024-02-28 00:00:00', '2024-03-01 12:00:00'])
    """

    unit: str = ""
    origin: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.unit, str) or not isinstance(self.origin, str):
            raise InputError(f"a time scale is a unit and a date, not {self.unit!r}.")
        if self.origin and (_date(self.origin) is None or self.unit not in _MICROSECONDS):
            raise InputError(f"times cannot count {self.unit!r} since {self.origin[:40]!r}.")

    def __str__(self) -> str:
        return f"{self.unit} since {self.origin}" if self.origin else self.unit

    def numbers(self, values: Any, where: str = "times") -> Array:
        """Times in this scale: plain numbers as they are, dates and labels converted.

        >>> TimeScale("days", "2024-02-28").numbers(["2024-03-20"])
        array([21.])
        >>> TimeScale("hours").numbers(["90 min", "2h"])
        array([1.5, 2. ])
        """
        found, scale = read_times(values, where)
        # Labels in the unit of a calendar, such as "day 3", count from its origin.
        same = scale.unit == self.unit and not scale.origin
        return found if same else scale.converted(found, self, where)

    def converted(self, numbers: Array, to: TimeScale, where: str = "times") -> Array:
        """Times of this scale in another one; plain numbers stay as they are."""
        if self == to or not (self.unit or self.origin):
            return numbers
        known = self.unit in _MICROSECONDS and to.unit in _MICROSECONDS
        if bool(self.origin) != bool(to.origin) or not known:
            raise InputError(
                f"{where} in {self} cannot be compared with times in "
                f"{str(to) or 'plain numbers'}; give both in the same way."
            )
        here, there = _MICROSECONDS[self.unit], _MICROSECONDS[to.unit]
        if not self.origin:
            return np.asarray(numbers * (here / there))
        # Dates are whole microseconds: so they do not depend on the scale that they come from.
        moments = np.rint(numbers * here) + (_moment(self.origin) - _moment(to.origin))
        return np.asarray(moments / there)

    def labels(self, numbers: Any) -> list[str]:
        """The times as text: dates if they are dates, otherwise numbers."""
        values = np.asarray(numbers, dtype=np.float64)
        if not self.origin:
            return [f"{value:.12g}" for value in values]
        start, size = _EPOCH + timedelta(microseconds=_moment(self.origin)), _MICROSECONDS
        try:
            moments = [start + timedelta(microseconds=round(v * size[self.unit])) for v in values]
        except OverflowError:
            worst = values[np.argmax(abs(values))]
            raise InputError(
                f"time {worst:g} {self.unit} is beyond the calendar; ask for times nearer to "
                f"{self.origin}."
            ) from None
        if all(m.hour == m.minute == m.second == m.microsecond == 0 for m in moments):
            return [m.date().isoformat() for m in moments]
        return [m.replace(tzinfo=None).isoformat(sep=" ") for m in moments]

    def column(self, numbers: Array) -> Any:
        """The times for a table: dates as text, otherwise numbers."""
        return np.asarray(self.labels(numbers), dtype=object) if self.origin else numbers


def read_times(
    values: Any, where: str = "times", place: Callable[[int], str] | None = None
) -> tuple[Array, TimeScale]:
    """Times as numbers in the order given, and what the numbers mean.

    Parameters
    ----------
    values : sequence
        Numbers, texts, dates or durations, all of one kind.
    where : str
        Their name in messages.
    place : callable, optional
        Maps a position to words for it, such as `"in row 17"`.

    >>> read_times(["day-2", "day-4", "day-7"])
    (array([2., 4., 7.]), TimeScale(unit='days', origin=''))
    """
    parsed = _parsed(values, where, place)
    if not parsed:
        return np.empty(0), TimeScale()
    if parsed[0].kind == "number":
        numbers = np.array([part.value for part in parsed], dtype=np.float64)
        _ask_about_dates(numbers, where)
        return numbers, TimeScale()
    if parsed[0].kind == "label":
        unit, numbers = _labelled(parsed, where)
        return numbers, TimeScale(unit)
    moments = _moments(parsed)
    unit = _natural_unit(moments)
    origin = datetime.isoformat(
        (_EPOCH + timedelta(microseconds=int(moments.min()))).replace(tzinfo=None), sep=" "
    ).removesuffix(" 00:00:00")
    return (moments - moments.min()) / _MICROSECONDS[unit], TimeScale(unit, origin)


class _Part(NamedTuple):
    """One time, taken apart."""

    kind: Kind
    value: float | int
    """A number, or microseconds (since 1970, or of a duration)."""
    text: str
    word: str = ""
    hyphen: bool = False
    naive: bool = True


def _parsed(values: Any, where: str, place: Callable[[int], str] | None = None) -> list[_Part]:
    """The times taken apart, all of one kind: that of most of them."""
    items = _listed(values, where)
    place = place or (lambda k: f"at position {k}")
    found = [_part(item) for item in items]
    kinds = Counter(part.kind for part in found if part is not None)
    usual = kinds.most_common(1)[0][0] if kinds else "number"
    for k, part in enumerate(found):
        if part is None or part.kind != usual:
            shown = repr(items[k] if isinstance(items[k], str) else str(items[k]))[:60]
            missing = items[k] is None or bool(np.all(items[k] != items[k]))
            what = f"is missing {place(k)}" if missing else f"is {shown} {place(k)}"
            rule = "fill it or drop it" if missing else f"it must be {_FORMS}"
            other = ""
            if part is not None and not missing:
                example = next(p.text for p in found if p is not None and p.kind == usual)
                other = f", like the others ({example})"
            raise InputError(f"{where}: the time {what}; {rule}{other}.")
    return [part for part in found if part is not None]


def _listed(values: Any, where: str) -> list[Any]:
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InputError(f"{where} are masked at some positions; drop those times.")
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
    except (TypeError, ValueError):
        array = np.asarray(list(values), dtype=object)
    if array.ndim != 1:
        raise InputError(f"{where} have shape {array.shape}; give a flat list.")
    if array.dtype.kind == "O" or isinstance(values, list | tuple):
        return list(values)
    return list(array) if array.dtype.kind in "mM" else array.tolist()


def _part(value: Any) -> _Part | None:
    """One time taken apart; `None` if it is not a time."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return None if np.isnat(value) else _microseconds(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        number = float(value)
        return _Part("number", number, f"{number:g}") if np.isfinite(number) else None
    if isinstance(value, timedelta | date) and value != value:  # pandas' missing value
        return None
    if isinstance(value, timedelta):
        return _Part("label", round(value / timedelta(microseconds=1)), str(value), "\0")
    if isinstance(value, date):
        return _stamp(value if isinstance(value, datetime) else datetime(*value.timetuple()[:3]))
    return _from_text(value.strip()) if isinstance(value, str) else None


def _microseconds(value: Any) -> _Part:
    if isinstance(value, np.datetime64):
        count = int(value.astype("datetime64[us]").astype(np.int64))
        return _Part("date", count, str(value))
    if np.datetime_data(value.dtype)[0] in ("Y", "M", "generic"):
        return _Part("number", float(value.astype(np.int64)), str(value))
    return _Part("label", int(value.astype("timedelta64[us]").astype(np.int64)), str(value), "\0")


def _stamp(moment: datetime, text: str = "") -> _Part:
    naive = moment.tzinfo is None
    aware = moment.replace(tzinfo=UTC) if naive else moment
    count = (aware - _EPOCH) // timedelta(microseconds=1)
    return _Part("date", count, text or str(moment), naive=naive)


def _from_text(text: str) -> _Part | None:
    plain = text.replace("\u2212", "-")
    if _NUMBER.fullmatch(plain):
        number = float(plain)
        return _Part("number", number, text) if np.isfinite(number) else None
    moment = _date(plain)
    if moment is not None:
        return _stamp(moment, text)
    digits = _DIGITS.findall(plain)
    if len(digits) != 1 or len(plain) > 60:
        return None
    before, _, after = plain.partition(digits[0])
    number, hyphen = float(digits[0]), False
    if before.endswith(("-", "+")):
        sign, lead = before[-1], before[:-1]
        if lead and not lead[-1].isspace():
            hyphen = sign == "-"
        elif sign == "-":
            number = -number
        before = lead
    words = [word.strip(" \t_-=:.") for word in (before, after)]
    return _Part("label", number, text, " ".join(w for w in words if w), hyphen)


def _date(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(f"{text}-01" if _MONTH.fullmatch(text) else text)
    except ValueError:
        return None


def _moment(text: str) -> int:
    moment = _date(text)
    assert moment is not None
    return int(_stamp(moment).value)


def _moments(parsed: Sequence[_Part]) -> NDArray[np.int64]:
    if len({part.naive for part in parsed}) > 1:
        raise InputError(
            f"some dates have a time zone and some have none ({parsed[0].text[:40]!r}); give all "
            "of them one, or none."
        )
    return np.array([part.value for part in parsed], dtype=np.int64)


def _natural_unit(microseconds: NDArray[np.int64]) -> str:
    """The largest of days to seconds that is no longer than the shortest interval."""
    steps = np.diff(np.unique(microseconds))
    shortest = int(steps.min()) if steps.size else _MICROSECONDS["days"]
    units = ("days", "hours", "minutes", "seconds", "milliseconds")
    return next((unit for unit in units if _MICROSECONDS[unit] <= shortest), "milliseconds")


def _labelled(parsed: Sequence[_Part], where: str) -> tuple[str, Array]:
    """Unit and numbers of labels."""
    hyphens = [part for part in parsed if part.hyphen]
    if hyphens and len(hyphens) < len(parsed):
        a, b = hyphens[0], next(part for part in parsed if not part.hyphen)
        raise InputError(
            f"{where}: is the hyphen of {a.text!r} a minus? {b.text!r} has none; write it with a "
            "blank before it (day -2) if it is, and without it (day 2) if not."
        )
    if parsed[0].word == "\0" and all(part.word == "\0" for part in parsed):
        count = np.array([part.value for part in parsed], dtype=np.int64)
        unit = _natural_unit(count)
        return unit, count / _MICROSECONDS[unit]
    units = [_UNITS.get(part.word.lower(), part.word) for part in parsed]
    different = sorted({unit.lower(): unit for unit in units}.values())
    numbers = np.array([part.value for part in parsed], dtype=np.float64)
    if len(different) == 1:
        return units[0], numbers
    if not all(unit in _MICROSECONDS for unit in different):
        odd = next(part for part, unit in zip(parsed, units, strict=True) if unit != units[0])
        raise InputError(
            f"{where} are written as {parsed[0].text!r} and as {odd.text!r}; give all of them in "
            "one unit."
        )
    smallest = min(different, key=_MICROSECONDS.__getitem__)
    size = np.array([_MICROSECONDS[unit] for unit in units], dtype=np.float64)
    return smallest, numbers * size / _MICROSECONDS[smallest]


def _ask_about_dates(numbers: Array, where: str) -> None:
    """Reject whole numbers that are all calendar dates: they are ambiguous."""
    likely = (numbers >= 19000101) & (numbers <= 21001231) & (numbers % 1 == 0)
    if not numbers.size or not likely.all():
        return
    texts = [f"{int(number)}" for number in np.unique(numbers)]
    dates = [f"{text[:4]}-{text[4:6]}-{text[6:]}" for text in texts]
    if all(_date(text) is not None for text in dates):
        raise InputError(
            f"{where} such as {texts[0]} could be dates or numbers; write {dates[0]} if they are "
            f"dates, and count from another zero (subtract {texts[0]}) if they are numbers."
        )
