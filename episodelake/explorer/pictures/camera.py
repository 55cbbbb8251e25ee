"""Elements that the browser plays by itself: a slider with its clock, and cameras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments

from ..moments import text_of
from .sources import FrameSource


class Playback(ui.element, component="playback.js"):
    """A slider that moves all cameras and charts of the nearest element around it of the class `stepped`.

    Args:
        on_moved: called with the step and whether it plays, a few times a second.
    """

    def __init__(self, on_moved: Callable[[int, bool], Any]) -> None:
        super().__init__()
        self._turn = self._moves = 0
        self._props.update(first=0, last=0, rate=30.0, thumbnails=[], wanted={"t": 0, "turn": 0, "move": 0})
        self._on_moved = on_moved
        self.on("moved", self._moved)

    def _moved(self, event: GenericEventArguments) -> None:
        # One that was sent before something else was opened tells nothing about it.
        if event.args["turn"] == self._turn:
            self._on_moved(int(event.args["t"]), bool(event.args["playing"]))

    def open(self, t: int, **props: Any) -> None:
        """Stop, and go on with something else.

        Args:
            t: the step to begin at.
            **props: `first`, `last` and `rate`, steps in a second.
        """
        self._turn += 1
        self.show(t, **props)

    def show(self, t: int, **props: Any) -> None:
        """Move to a step; see `open`."""
        self._moves += 1
        self.change(**props, wanted={"t": t, "turn": self._turn, "move": self._moves})

    def change(self, **props: Any) -> None:
        """Change other properties, such as `last` of an episode that grows."""
        self._props.update(props)
        self.update()


class Camera(ui.element, component="camera.js"):
    """The frames of a camera with its name; a click enlarges them.

    Args:
        source: the frames.
        on_problem: called with what is wrong with frames that cannot be read.
        name: what to call them; by default the name of the source.
        zero: the step that is shown at 0.
    """

    def __init__(
        self, source: FrameSource, on_problem: Callable[[str], Any], name: str = "", zero: int = 0
    ) -> None:
        super().__init__()
        self._props["name"] = name or text_of(source.name)
        self._zero = zero
        self.on("problem", lambda event: on_problem(str(event.args)))
        self.show(source)

    def show(self, source: FrameSource) -> None:
        """Go on with other frames."""
        self.source = source
        self._props["source"] = source.props | {"zero": self._zero}
        self.update()
