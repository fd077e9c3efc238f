"""The words of mails: a template for each language, kind and form, filled in; HTML is escaped."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

_SUBJECT = "Subject: "


def subject_and_text(language: str, name: str, **values: object) -> tuple[str, str]:
    """The subject and the plain text of the mail called `name`: the template's first line, and what follows it."""
    filled = _templates().get_template(f"{language}/{name}.txt").render(values)
    subject, _, text = filled.partition("\n\n")
    return subject.removeprefix(_SUBJECT), text


def html(language: str, name: str, **values: object) -> str:
    """The HTML of the mail called `name`."""
    return _templates().get_template(f"{language}/{name}.html").render(values, language=language)


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("ticketflow_orch.mail"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
