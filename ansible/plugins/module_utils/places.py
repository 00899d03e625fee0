# SPDX-License-Identifier: Apache-2.0
"""YAML in which each value has its place. Strict as edge.yaml is: what a reader
cannot see at a glance (anchors, aliases, tags, merge keys, keys that are given
twice) is refused, and every mistake is found at once. Pure; for the controller,
as it needs PyYAML."""

from __future__ import annotations

import difflib
import re

import yaml

MAX_SIZE = 4 << 20  # characters
MAX_DEPTH = 24
MAX_PROBLEMS = 200

# Scalars keep their text unless a number gives the same text again: 1.10 is not
# 1.1 when it is a name, 65001:100 is no time of day, and "on" is a word.
_WHOLE = re.compile(r"^(0|-?[1-9][0-9]{0,17})$")
_SPLIT = re.compile(r"^[0-9]+\.[0-9]+$")
_REFUSED = {
    yaml.AnchorToken: "YAML anchors (&) are not taken; quote a value that begins with &",
    yaml.AliasToken: "YAML aliases (*) are not taken; quote a value that begins with *",
    yaml.TagToken: "YAML tags (!) are not taken; quote a value that begins with !",
    yaml.DirectiveToken: "YAML directives (%) are not taken",
}


class Problem:
    """One mistake, at its place in a file. Lines and columns count from 1."""

    def __init__(self, file, place, path, message):
        self.file, self.path, self.message = file, path, message
        self.line, self.column = place or (1, 1)

    def __str__(self):
        at = f"{self.file}:{self.line}:{self.column}: "
        return at + (f"{self.path}: " if self.path else "") + self.message


class Problems(Exception):
    """All mistakes of a file, in its order."""

    def __init__(self, problems):
        self.problems = sorted(problems, key=lambda p: (p.file, p.line, p.column))
        super().__init__(str(self))

    def __str__(self):
        lines = [str(p) for p in self.problems[:MAX_PROBLEMS]]
        if len(self.problems) > MAX_PROBLEMS:
            lines.append(f"and {len(self.problems) - MAX_PROBLEMS} more")
        return "\n".join(lines)


def place_of(mark):
    return (mark.line + 1, mark.column + 1)


def nearest(word, known):
    """The known word that somebody may have meant, or None."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return found[0] if found else None


class Reader:
    """Takes a file apart and gathers what is wrong with it."""

    def __init__(self, file):
        self.file = file
        self.problems = []
        self.at = {}  # path -> place of each value

    def fail(self, path, message, place=None):
        self.problems.append(Problem(self.file, place or self.place(path), path, message))

    def place(self, path):
        """Where path stands, or the nearest that is around it."""
        while path and path not in self.at:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.at.get(path, (1, 1))

    def done(self):
        if self.problems:
            raise Problems(self.problems)

    def document(self, text):
        """The root node of the only document of text. What follows can rely on it."""
        if len(text) > MAX_SIZE:
            self.fail("", f"the file has more than {MAX_SIZE} characters")
            self.done()
        try:
            self._scan(text)
            self.done()
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as err:
            mark = err.problem_mark or err.context_mark
            self.fail("", f"not valid YAML: {err.problem or err.context}", place_of(mark) if mark else None)
            self.done()
        except yaml.YAMLError as err:
            self.fail("", f"not valid YAML: {str(err).splitlines()[0]}")
            self.done()
        if root is None:
            self.fail("", "the file is empty")
            self.done()
        return root

    def _scan(self, text):
        depth = 0
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            why = _REFUSED.get(type(token))
            if why:
                self.fail("", why, place_of(token.start_mark))
            if isinstance(token, (yaml.BlockMappingStartToken, yaml.BlockSequenceStartToken,
                                  yaml.FlowMappingStartToken, yaml.FlowSequenceStartToken)):
                depth += 1
            elif isinstance(token, (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)):
                depth -= 1
            if depth > MAX_DEPTH:  # the parser calls itself for each level
                self.fail("", f"nested more than {MAX_DEPTH} levels deep", place_of(token.start_mark))
                self.done()

    def value(self, node, path):
        """Plain data of a node. The places of all values are noted."""
        self.at[path] = place_of(node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return {key: self.value(child, join(path, key)) for key, child in self.pairs(node, path)}
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, f"{path}[{i}]") for i, child in enumerate(node.value)]
        return scalar(node)

    def pairs(self, node, path):
        """The keys of a mapping and their nodes; of a key that is given twice, the first."""
        first = {}
        for key, child in node.value:
            place = place_of(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                self.fail(path, "a key is a word, not a list or a mapping", place)
            elif key.value == "<<" and key.style is None:
                self.fail(path, "YAML merge keys (<<) are not taken", place)
            elif key.value in first:
                self.fail(join(path, key.value), f"the key is given twice; it was given in line {first[key.value]}", place)
            else:
                first[key.value] = place[0]
                self.at[join(path, key.value)] = place
                yield key.value, child

    def section(self, node, path, what, known):
        """The nodes of a mapping whose keys are known; {} if it is none."""
        self.at.setdefault(path, place_of(node.start_mark))
        if not isinstance(node, yaml.MappingNode):
            self.fail(path, f"expected a mapping (key: value), found {describe(node)}", place_of(node.start_mark))
            return {}
        out = {}
        for key, child in self.pairs(node, path):
            if key in known:
                out[key] = child
                continue
            meant = nearest(key, known)
            hint = f"did you mean {meant}?" if meant else "it has " + ", ".join(known)
            self.fail(join(path, key), f"{what} has no such key; {hint}")
        return out

    def items(self, node, path):
        """The nodes of a list with their paths; nothing if it is none."""
        if not isinstance(node, yaml.SequenceNode):
            self.fail(path, f"expected a list, found {describe(node)}", place_of(node.start_mark))
            return []
        out = [(child, f"{path}[{i}]") for i, child in enumerate(node.value)]
        for child, at in out:
            self.at[at] = place_of(child.start_mark)
        return out


def join(path, key):
    return f"{path}.{key}" if path else key


def describe(node):
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "nothing" if scalar(node) is None else f'the value "{node.value[:64]}"'


def scalar(node):
    """The value of a scalar, by the rules of edge.yaml and not by those of YAML 1.1."""
    text = node.value
    if node.style is not None:
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.match(text):
        return int(text)
    if _SPLIT.match(text) and repr(float(text)) == text:
        return float(text)
    return text
