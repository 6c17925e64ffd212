"""Text on a terminal while it is being written."""

from collections.abc import Callable, Sequence

from torch import Tensor

from triform.data.tokenizers import Tokenizer

HALF = "\ufffd"
"""What a character decodes to of which not all tokens are there yet."""


class Stream:
    """Shows one row's new tokens as text, each character once it is certain; given to `generate` as `on_token`.

    Args:
        show: is given the next piece of text.
        end: tokens after which nothing more is wanted; their text is not shown. Empty: there are none.
    """

    def __init__(self, tokenizer: Tokenizer, show: Callable[[str], None], end: Sequence[int] = ()) -> None:
        self.tokenizer, self.show, self.end = tokenizer, show, list(end)
        self.end_text = tokenizer.decode(self.end)
        self.ids: list[int] = []
        self.shown = ""

    def __call__(self, tokens: Tensor) -> bool:
        """Returns whether the end has come."""
        self.ids.append(int(tokens[0]))
        if self.has_ended:
            return True
        text = self.tokenizer.decode(self.ids)
        certain = text.rstrip(HALF)
        for length in range(min(len(self.end_text), len(certain)), 0, -1):  # which may be the beginning of the end
            if certain.endswith(self.end_text[:length]):
                certain = certain[:-length]
                break
        self._show(certain)
        return False

    @property
    def has_ended(self) -> bool:
        return bool(self.end) and self.ids[-len(self.end) :] == self.end

    @property
    def text(self) -> str:
        """What has been written, without the end."""
        return self.tokenizer.decode(self.ids[: len(self.ids) - len(self.end)] if self.has_ended else self.ids)

    def close(self) -> None:
        """Show what was held back; all anew where later tokens have changed how earlier ones are written."""
        if self.text.startswith(self.shown):
            self._show(self.text)
        else:
            self.show(f"\n{self.text}")

    def _show(self, text: str) -> None:
        if text.startswith(self.shown) and len(text) > len(self.shown):
            self.show(text[len(self.shown) :])
            self.shown = text
