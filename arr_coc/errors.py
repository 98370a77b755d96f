"""Exception tree of the package, and counted nouns for its messages.

ArrCocError
├── BudgetError (ValueError)          a token budget that is neither a number from 1 on nor a share
├── StrategyError (ValueError)        an allocation strategy that does not exist
├── OptionError (ValueError)          an option out of range, or one that does not fit the others
├── ProfileError (ValueError)         a texture profile that does not exist
├── ShapeError (ValueError)           an array or tensor of the wrong shape or dtype
├── NonFiniteError (ArithmeticError)  NaN or Inf; names the tensor
├── StoreError (RuntimeError)         a texture store that cannot be opened or used
│   ├── BackendMissing                no such hardware, driver or library here
│   ├── DeviceLost                    hardware that worked and failed: context lost, out of memory
│   ├── StoreReplaced                 the CPU store took over from such hardware: lease again
│   └── LeaseTimeout (TimeoutError)   readers or the writer held the texture too long
├── ModelError (RuntimeError)         a model that cannot be used
│   └── ModelNotFound (FileNotFoundError)  no such folder, no weights in it, no such hub name
│       └── HubUnreachable            a hub name, and no way to ask the hub about it
└── ContextLengthError (ValueError)   prompt and answer do not fit the model's context
"""

from __future__ import annotations

from typing import ClassVar


class ArrCocError(Exception):
    """Base of every error that `arr_coc` raises on purpose; its message is fit to show to a user.

    The message is `problem`, and after a semicolon `remedy`: what to do, None if it is not given separately.
    """

    user_fixable: ClassVar[bool] = False
    """True for errors that the user can put right: reported as they are, while others mean that a stage died."""

    def __init__(self, problem: str = "", remedy: str | None = None) -> None:
        super().__init__(problem if remedy is None else f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class BudgetError(ArrCocError, ValueError):
    """A token budget that is neither a whole number of at least 1 nor a share of the tiles."""

    user_fixable = True


class StrategyError(ArrCocError, ValueError):
    """An allocation strategy that does not exist."""

    user_fixable = True


class OptionError(ArrCocError, ValueError):
    """An option out of range, or one that does not fit the others."""

    user_fixable = True


class ProfileError(ArrCocError, ValueError):
    """A texture profile that does not exist."""


class ShapeError(ArrCocError, ValueError):
    """An array or tensor of the wrong shape or dtype."""


class NonFiniteError(ArrCocError, ArithmeticError):
    """NaN or Inf in a tensor; the message names it."""


class StoreError(ArrCocError, RuntimeError):
    """A texture store that cannot be opened or used."""


class BackendMissing(StoreError):
    """The hardware, its driver or a library that a texture store needs is missing."""

    user_fixable = True


class DeviceLost(StoreError):
    """Graphics hardware that worked has failed: its context was lost, or it is out of memory."""

    user_fixable = True


class StoreReplaced(StoreError):
    """The hardware under a texture failed, and the CPU store has taken over with the same frame: lease again."""


class LeaseTimeout(StoreError, TimeoutError):
    """Readers or the writer held the texture longer than the time limit."""


class ModelError(ArrCocError, RuntimeError):
    """A model that cannot be used."""

    user_fixable = True


class ModelNotFound(ModelError, FileNotFoundError):
    """No such folder, no weights in it, or no such name on the hub."""


class HubUnreachable(ModelNotFound):
    """The hub cannot be asked for a model that is not on this machine."""


class ContextLengthError(ArrCocError, ValueError):
    """Prompt and answer do not fit the model's context."""

    user_fixable = True


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return the number and the noun in its singular or plural; `plural` if that is not the noun and an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def of_counted(number: int, total: int, noun: str) -> str:
    """So many of a whole: `1 of 4 tokens`, `1 of 1 token`."""
    return f"{number} of {counted(total, noun)}"
