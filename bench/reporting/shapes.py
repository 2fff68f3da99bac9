"""What JSON from a file has to look like before anything is made of it.

A shape is a function that takes a value and where it stands, and raises
ShapeError where it does not fit. Fields that are not named are passed over.
"""

import math


class ShapeError(Exception):
    """Names the field that is not as it should be."""


def text(value, where):
    if not isinstance(value, str):
        raise ShapeError(f"{where} is no text")
    try:  # JSON can name halves of characters, which nobody can write
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ShapeError(f"{where} is no valid Unicode") from error


def flag(value, where):
    if not isinstance(value, bool):
        raise ShapeError(f"{where} is neither true nor false")


def integer(least=0, most=1 << 64):
    def check(value, where):
        # True is an int to Python, and no number to us.
        if isinstance(value, bool) or not isinstance(value, int):
            raise ShapeError(f"{where} is no whole number")
        if not least <= value <= most:
            raise ShapeError(f"{where} is not from {least} to {most}")
    return check


def number(value, where):
    """Finite, and not below zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ShapeError(f"{where} is no number")
    if not (math.isfinite(value) and value >= 0):
        raise ShapeError(f"{where} is no number from 0 on")


def list_of(shape, least=0):
    def check(value, where):
        if not isinstance(value, list):
            raise ShapeError(f"{where} is no list")
        if len(value) < least:
            raise ShapeError(f"{where} has fewer than {least} entries")
        for i, item in enumerate(value):
            shape(item, f"{where}[{i}]")
    return check


def fields(needed, optional=None):
    """An object. Optional fields may be missing, and null."""
    def check(value, where):
        if not isinstance(value, dict):
            raise ShapeError(f"{where} is no object")
        for name, shape in needed.items():
            if name not in value:
                raise ShapeError(f"{where} has no \"{name}\"")
            shape(value[name], f"{where}.{name}")
        for name, shape in (optional or {}).items():
            if value.get(name) is not None:
                shape(value[name], f"{where}.{name}")
    return check


def either(name, with_it, without_it):
    """An object of the one shape where its field `name` says something, and of
    the other where it is missing, null or empty."""
    def check(value, where):
        told = isinstance(value, dict) and value.get(name)
        (with_it if told else without_it)(value, where)
    return check


def anything(_value, _where):
    """Fits whatever it is."""
