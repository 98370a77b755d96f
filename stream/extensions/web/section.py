"""Section `[web]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import Self

from stream.config import ExtensionSection, FileName
from stream.options.option import Option
from stream.sources.address import HIDDEN


class WebSection(ExtensionSection):
    """The live page (docs/web.md)."""

    section: ClassVar[str] = "web"
    switch: ClassVar[str] = "address"

    def shown(self) -> Self:
        """Return the section without the token."""
        return self.model_copy(update={"token": None if self.token is None else HIDDEN})

    address: Annotated[
        str | None,
        Option("--web [HOST:]PORT", "Show the run in a web page, on this machine. [off]", only="watch", group="Page"),
        Option(
            "--web [HOST:]PORT", "Show all cameras in a web page, on this machine. [off]", only="fleet", group="Page"
        ),
        Option(
            "--web [HOST:]PORT",
            "Show it in a web page, beside the compare page and the microscope. [off]",
            only="demo",
            group="Page",
        ),
    ] = Field(default=None, min_length=1, examples=['"127.0.0.1:8090"'])
    """"[HOST:]PORT" of a page that shows the run, on this machine unless HOST says otherwise; no page when absent. See
    docs/web.md."""
    any_source: Annotated[
        bool,
        Option(
            "--any-source", "Let viewers open any address or file that this program can read.", only="web", group="Page"
        ),
    ] = False
    """Let viewers of the command `web` open any source by its address: they get at the files and the network of this
    machine."""
    compare: Annotated[
        tuple[str, ...],
        Option(
            "--compare-model MODEL[+ALLOCATOR]",
            "Another model, or allocator (a folder or none), for the page that compares answers; may be repeated.",
            only="web",
            group="Page",
        ),
    ] = Field(default=(), strict=False, examples=['["Qwen/Qwen3-VL-2B-Instruct"]'])
    """Models, beside `answer.model`, whose answers viewers of the command `web` can compare, each as MODEL[+ALLOCATOR]:
    a folder or hub name, and the folder of an allocator or `none`. Without MODEL it is `answer.model`. See
    docs/web.md#compare-answers."""
    compare_loaded: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=1)],
        Option(
            "--compare-loaded N",
            "Most models that stay loaded for the page that compares answers. [what fits into memory]",
            only="web",
            group="Page",
        ),
    ] = "auto"
    """Most models that stay loaded for comparisons. `auto`: as many as fit into three quarters of the free memory."""
    compare_questions: Annotated[
        FileName | None,
        Option(
            "--compare-questions FILE",
            "Pictures, questions, answers and boxes (JSONL) for the page that compares answers. [none]",
            only="web",
            group="Page",
        ),
    ] = None
    """JSONL of pictures, questions, answers and boxes that viewers of the command `web` can compare answers about. See
    docs/web.md#your-own-questions."""
    rate: Annotated[
        float,
        Option(
            "--web-rate N",
            "Most pictures per second for a viewer of the page. [{default}]",
            only="watch fleet web",
            group="Page",
        ),
    ] = Field(default=15.0, gt=0, le=60)
    """Pictures a second that a viewer of the page gets at most."""
    width: Annotated[
        int,
        Option(
            "--web-width N",
            "Greatest width of a picture in the page. [{default}]",
            only="watch fleet web",
            group="Page",
        ),
    ] = Field(default=1280, ge=64, le=8192)
    """Greatest width of a picture in the page, in pixels; a wider frame is halved until it fits."""
    control: Annotated[
        bool | None,
        Option(
            "--web-control / --no-web-control",
            "Let viewers ask. [on this machine only]",
            only="watch fleet web demo",
            group="Page",
        ),
    ] = None
    """Let viewers of the page ask; when absent, only if the page stays on this machine."""
    token: Annotated[
        str | None,
        Option(
            "--web-token TEXT",
            "Secret that viewers must give; auto: make one. In the process list; ARR_COC_WEB_TOKEN is not. [none]",
            only="watch fleet web demo",
            group="Page",
        ),
    ] = Field(default=None, min_length=4)
    """Secret that viewers must give, of 8 characters or more; `auto` makes one and prints it. Needed if HOST is not
    this machine. The option stands in the process list; the environment variable ARR_COC_WEB_TOKEN and a configuration
    file do not."""
    camera: str | None = Field(default=None, pattern=r"^(tcp|ipc)://.+", examples=['"tcp://127.0.0.1:5558"'])
    """ZeroMQ endpoint of the frames of a viewer's camera, which `watch browser:` sets
    (docs/web.md#the-browsers-camera)."""
    sources: tuple[str, ...] = Field(default=(), strict=False, examples=['["door=rtsp://camera.local/stream"]'])
    """Sources that the command `web` offers to viewers, each as NAME=SOURCE."""
    cert: Annotated[
        FileName | None,
        Option("--web-cert FILE", "Certificate for HTTPS, as PEM. [off]", only="watch fleet web", group="Page"),
    ] = None
    """Certificate (PEM) for HTTPS."""
    key: Annotated[
        FileName | None,
        Option("--web-key FILE", "Private key of the certificate, as PEM. [off]", only="watch fleet web", group="Page"),
    ] = None
    """Private key (PEM) of the certificate."""
