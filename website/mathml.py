"""Equations as MathML, which browsers show without scripts and fonts from elsewhere."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_mathml(node))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="equation">{_mathml(node)}</div>\n')
    raise nodes.SkipNode


def _mathml(node: nodes.math | nodes.math_block) -> str:
    """The equation with spaces after the names of functions, as in `log x`, which browsers leave out."""
    markup = tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block))
    name_before_argument = r"(<mi>(?:log|exp)</mi>\s*<mo>&ApplyFunction;</mo>)(?=\s*<m(?!o))"
    return re.sub(name_before_argument, r'\1<mspace width="0.17em"/>', markup)


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
