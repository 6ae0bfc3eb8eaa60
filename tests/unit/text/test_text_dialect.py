"""Filters, methods and names of chat templates, against what transformers makes of them
(tests/oracle/chat_reference.py writes dialect.json; tests/oracle/test_chat_templates.py asks it anew)."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from octavo.errors import ModelError, OctavoError
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer
from tests.chat_corpus import REFUSED, SAYS, dialect


@pytest.mark.parametrize("source", dialect())
def test_as_transformers(source: str, tiny: Tokenizer) -> None:
    want = dialect()[source]
    template = ChatTemplate(source, tokenizer=tiny)
    if want == REFUSED:
        with pytest.raises(OctavoError):
            template.render(SAYS)
        return
    assert template.render(SAYS) == want
    ids = template.encode(SAYS)
    assert tiny.special_ids.isdisjoint(ids), "what a user wrote becomes no control token by any of them"


WIDE = [
    "{{ '%1000000000s' % 'x' }}",
    "{{ '%-1000000000d' % 1 }}",
    "{{ '%0999999999d' % 1 }}",
    "{{ '%.1000000000f' % 1.5 }}",
    "{{ '%.1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%(a)1000000000s' % {'a': 1} }}",
    "{{ ('%9999s' * 100000) % ((1,) * 100000) }}",
    "{{ ('%(a)s' * 100000) % {'a': 'x' * 1000000} }}",
    "{{ ('%(a)d' * 20000) % {'a': 2 ** 2000} }}",
    "{{ ('%(a)f' * 100000) % {'a': 1e308} }}",
    "{{ ('%(a)d' * 100000) % {'a': 1e308} }}",
    "{{ ('%d' * 600000) % 1 }}",
    "{{ '%999999999s' | format('x') }}",
    "{{ '%(a)999999999s' | format(a='x') }}",
    "{{ ['%999999999s'] | map('format', 1) | list }}",
    "{{ ('%999999999s' | safe) % 'x' }}",
    "{{ 'x' | center(10 ** 9) }}",
    "{{ 'x' | center(width=10 ** 9) }}",
    "{{ ['x'] | map('center', 10 ** 9) | list }}",
    "{{ '{0:>999999999}'.format('x') }}",
    "{{ '{:.999999999f}'.format(1.5) }}",
    "{{ '{:_>+0999999999,.3f}'.format(1) }}",
    "{{ '{:\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669}'.format(1) }}",
    "{{ '{0:{1}}'.format('x', 999999999) }}",
    "{{ '{:{}}'.format(1, '9' * 100000) }}",
    "{{ ('{0:9999}' * 100000).format(1) }}",
    "{{ ('{0}' * 100000).format('x' * 1000000) }}",
    "{{ ('{a}' * 100000).format_map({'a': 'x' * 1000000}) }}",
    "{{ ('{0:b}' * 10000).format(2 ** 2000) }}",
    "{{ ('{0:>999999999}' | e).format('x') }}",
    "{{ 'a\t'.expandtabs(10 ** 9) }}",
    "{{ ('\t' * 1000000).expandtabs(10000) }}",
]
INSIDE = [
    "{{ '{0.__class__}'.format('x') }}",
    "{{ '{0[__class__]}'.format('x') }}",
    "{{ '{0.f.__globals__}'.format({'f': raise_exception}) }}",
    "{{ '{m.__class__}'.format_map({'m': messages}) }}",
    "{{ '{0.format.__self__}'.format('x') }}",
    "{{ ('{0.__class__}' | attr('format'))('x') }}",
    "{{ (['{0.__class__}'] | map(attribute='format') | first)('x') }}",
    "{{ ('{0.__class__}' | safe).format('x') }}",
    "{{ ''.format.__wrapped__.x }}",
    "{{ messages | attr('__class__') }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ joiner.__init__.__globals__.os }}",
    "{{ joiner().__class__.__init__.__globals__ }}",
    "{{ dict.__class__.__mro__ }}",
    "{{ dict.fromkeys.__func__.__globals__ }}",
]
NESTED = (
    "{% set n = namespace(a=OPEN1CLOSE, b=OPEN1CLOSE) %}"
    "{% for i in range(40) %}{% set n.a = OPENn.a, n.aCLOSE %}{% set n.b = OPENn.b, n.bCLOSE %}{% endfor %}"
)
LISTS = NESTED.replace("OPEN", "[").replace("CLOSE", "]")
"""Two lists of 40 levels that write out to 2 ** 40 members."""
TUPLES = NESTED.replace("1CLOSE", "1,CLOSE").replace("OPEN", "(").replace("CLOSE", ")")
"""The same as tuples, which can be keys: a hash of one takes as long."""
DEEP = [
    LISTS + "{{ '%s' % (n.a,) }}",
    LISTS + "{{ '{!r}'.format(n.a) }}",
    LISTS + "{{ n }}",
    LISTS + "{{ {'a': n.a}.values() }}",
    LISTS + "{{ n.a is eq n.b }}",
    LISTS + "{{ [n.a] | select('in', [n.b]) | list }}",
    LISTS + "{{ n.a is lower }}",
    LISTS + "{{ n.a in {'x': n.b}.values() }}",
    LISTS + "{{ raise_exception(n.a) }}",
    LISTS + "{% for i in [1, 2] %}{{ loop.changed(n.a if loop.first else n.b) }}{% endfor %}",
    TUPLES + "{{ {n.a: 1} is mapping }}",
    TUPLES + "{{ {}[n.a] }}",
    TUPLES + "{{ dict.fromkeys([{'a': n.a}] | map(attribute='a')) is mapping }}",
]
LARGE = [
    "{{ ([{'a': 'x' * 1000000}] * 100000) | map(attribute='a') | join }}",
    "{{ ''.join(([{'a': 'x' * 1000000}] * 100000) | map(attribute='a')) }}",
    "{{ ('b' * 1000).join('a' * 16000000) }}",
    "{{ range(99999) | join('x' * 1000000) }}",
    "{{ (['a'] * 100000) | join(d='b' * 1000000, attribute='x') }}",
    "{{ 'aaaa' | replace(new='b' * 10000000, old='') }}",
    "{{ ('a\n' * 1000000) | indent(10000) }}",
    "{{ messages | tojson(separators=('x' * 1000000, ':')) }}",
    "{{ ('f' * 8000000) | int(0, 16) }}",
    "{{ ('a' * 3000000).rsplit('ab' + 'a' * 1000000) }}",
    "{{ ('a' * 8000000).strip('b' * 7000000 + 'a') }}",
    "{{ ('a' * 8000000) | trim('b' * 7000000 + 'a') }}",
    "{{ ('x ' * 5000000) | wordcount }}",
    "{{ ('x' * 1000000) | wordwrap(1) }}",
    "{{ ('x' * 100000) | wordwrap(1, wrapstring='y' * 1000000) }}",
    "{{ ('\u00e9' * 10000000) | urlencode }}",
    "{{ ([1] * 300000) | pprint }}",
    "{% set c = cycler('x' * 1000000) %}{% for i in range(99999) %}{{ c.next() }}{% endfor %}",
    "{% set j = joiner('x' * 1000000) %}{% for i in range(99999) %}{{ j() }}{% endfor %}",
]


@pytest.mark.parametrize("source", [*WIDE, *LARGE])
def test_limits_of_size(source: str, tiny: Tokenizer) -> None:
    tracemalloc.start()
    try:
        refused_in_time(source, tiny)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000, "a text of 16 million characters may take 64 MB"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("source", DEEP)
def test_limits_of_time(source: str, tiny: Tokenizer) -> None:
    refused_in_time(source, tiny)


def refused_in_time(source: str, tiny: Tokenizer) -> None:
    start = time.perf_counter()
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate(source, tokenizer=tiny).render(SAYS)
    assert time.perf_counter() - start < 6, "the limit is 2 s, plus a busy machine"


@pytest.mark.parametrize("source", INSIDE)
def test_no_way_to_what_is_pythons_own(source: str, tiny: Tokenizer) -> None:
    try:
        assert not ChatTemplate(source, tokenizer=tiny).render(SAYS), "undefined, which writes nothing"
    except OctavoError:
        pass  # refused aloud


@pytest.mark.parametrize("source", ["{{ 'ab' | truncate(1) }}", "{{ 'ab' | truncate(leeway=-1) }}", "{{ cycler() }}"])
def test_arguments_that_do_not_fit(source: str, tiny: Tokenizer) -> None:
    with pytest.raises(OctavoError, match=r"got .*allowed"):
        ChatTemplate(source, tokenizer=tiny).render(SAYS)


@pytest.mark.parametrize("name", ["random", "striptags", "urlize"])
def test_filters_left_out_are_named(name: str, tiny: Tokenizer) -> None:
    with pytest.raises(ModelError, match=name):
        ChatTemplate("{{ 'x' | " + name + " }}", tokenizer=tiny)
