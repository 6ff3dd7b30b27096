"""JSON schemas, rewritten so that every text of the grammar made from them validates; or refused, with the place.

What xgrammar makes of a schema leaves out some keywords in silence, and reads patterns as they stand although JSON
escapes quotes. Here every keyword is known: it is kept, written in another way, or refused with its path. Patterns,
formats and the names of additional properties become references to automata of our own.

The grammar may say less than the schema: objects write their properties in the order of the schema, and additional ones
only where the schema names `additionalProperties` or has no `properties`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from aquiline.engine.regex_parser import Regex, parse_regex
from aquiline.engine.schema_exclusive import are_exclusive
from aquiline.engine.schema_keywords import ANNOTATIONS, KEYWORDS, KNOWN, TYPES, check_keyword, merged, moves_references
from aquiline.engine.schema_limits import LARGEST_INTEGER, Schema, escaped, limits, number_limits, refuse, shown
from aquiline.engine.schema_strings import FORMATS, format_regex, in_json, other_names
from aquiline.engine.schema_values import are_equal, fits_type, numbers_in

MAX_SCHEMAS = 2000
MAX_DEPTH = 64
MAX_OPTIONAL = 200
MAX_ITEMS = 1000
MAX_LENGTH = 2**31 - 1
RULES_PER_TEXT = 100


@dataclass(frozen=True)
class ReadSchema:
    """A schema that xgrammar can be given.

    Attributes:
        schema: with `pattern_name(i)` where a text must match `texts[i]`.
        texts: as they stand between quotes.
        is_recursive: parts of it are referred to, so they may lead to each other.
        work: rules that it takes where few words ask for many, about: those of remainders, of counted properties and of
            automata.
    """

    schema: Schema
    texts: tuple[Regex, ...]
    is_recursive: bool
    work: int


def pattern_name(number: int) -> str:
    """A pattern that stands for another one, and comes out of xgrammar's conversion as a rule of its own."""
    return f"(aquiline{number}|-)"


def read_schema(text: str) -> ReadSchema:
    """Rewrite a schema.

    Raises:
        InvalidParameterError: a keyword that cannot be honoured, with its path; no schema; or too large a one.
    """
    return _Reader(json.loads(text)).read()


class _Reader:
    def __init__(self, root: object) -> None:
        self._root = root
        self._num_schemas = 0
        self._num_bases = 0
        self._work = 0
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Schema] = {}
        self._texts: dict[Regex, int] = {}
        self._untyped: dict[int, Schema] = {}

    def read(self) -> ReadSchema:
        schema = self._schema(self._root, "#", 0)
        if self._definitions:
            # A reference beside definitions is a form that the converter knows, and so is this.
            schema = {"anyOf": [schema], "$defs": self._definitions}
        work = self._work + RULES_PER_TEXT * len(self._texts)
        return ReadSchema(schema, tuple(self._texts), bool(self._definitions), work)

    def _schema(self, node: object, path: str, depth: int) -> Schema:
        self._num_schemas += 1
        if self._num_schemas > MAX_SCHEMAS:
            refuse(path, f"there are more than {MAX_SCHEMAS} schemas in it")
        if depth > MAX_DEPTH:
            refuse(path, f"schemas lie deeper than {MAX_DEPTH} in each other")
        if node is True:
            return {}
        if node is False:
            refuse(path, "no value fits it")
        if not isinstance(node, Mapping):
            refuse(path, f"a schema is an object, true or false, not {shown(node)}")
        asserted = {}
        for keyword, value in node.items():
            check_keyword(keyword, path)
            if keyword in KNOWN:
                asserted[keyword] = value
        is_nullable = asserted.pop("nullable", False)
        if not isinstance(is_nullable, bool):
            refuse(f"{path}/nullable", f"{shown(is_nullable)} must be true or false")
        has_own_base = node is not self._root and moves_references(node)
        self._num_bases += has_own_base
        read = self._asserted(asserted, path, depth)
        self._num_bases -= has_own_base
        return {"anyOf": [read, {"type": "null"}]} if is_nullable else read

    def _asserted(self, node: Schema, path: str, depth: int) -> Schema:
        if "allOf" in node:
            node = merged(node, path)
        if "$ref" in node:
            self._alone(node, "$ref", path)
            return {"$ref": self._reference(node["$ref"], f"{path}/$ref", depth)}
        if "enum" in node or "const" in node:
            return self._values(node, path)
        for keyword in ("anyOf", "oneOf"):
            if keyword in node:
                return self._branches(node, keyword, path, depth)
        return self._typed(node, path, depth)

    def _alone(self, node: Schema, keyword: str, path: str, beside: Sequence[str] = ()) -> None:
        others = sorted(set(node) - {keyword, *beside})
        if others:
            refuse(f"{path}/{others[0]}", f"it stands beside {keyword}; write it into each alternative")

    def _reference(self, pointer: object, path: str, depth: int) -> str:
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            refuse(path, f"{shown(pointer)} does not point into this schema; write #/$defs/name")
        if self._num_bases:
            refuse(path, "a schema around it has an $id of its own, from which it would count; leave that out")
        if pointer not in self._names:
            target: object = self._root
            for part in unquote(pointer).split("/")[1:]:
                part = part.replace("~1", "/").replace("~0", "~")
                if isinstance(target, Mapping) and part in target:
                    target = target[part]
                elif isinstance(target, list) and part.isdecimal() and part.isascii() and int(part[:9]) < len(target):
                    target = target[int(part)]
                else:
                    refuse(path, f"there is nothing at {pointer}")
            name = self._names[pointer] = f"d{len(self._names)}"
            self._definitions[name] = {}
            self._definitions[name] = self._schema(target, pointer, depth + 1)
        return f"#/$defs/{self._names[pointer]}"

    def _values(self, node: Schema, path: str) -> Schema:
        keyword = "enum" if "enum" in node else "const"
        self._alone(node, keyword, path, ("type", "const"))
        values = node["enum"] if keyword == "enum" else [node["const"]]
        if not isinstance(values, list) or not values:
            refuse(f"{path}/{keyword}", "it must be a list of at least one value")
        if "const" in node:
            values = [value for value in values if are_equal(value, node["const"])]
        if "type" in node:
            types = self._types(node["type"], f"{path}/type")
            values = [value for value in values if any(fits_type(value, name) for name in types)]
        if not values:
            refuse(f"{path}/{keyword}", "none of its values fits what stands beside it")
        for value in numbers_in(values):
            if abs(value) > LARGEST_INTEGER:
                refuse(f"{path}/{keyword}", f"{value} is larger than {LARGEST_INTEGER}, so it may be rounded")
        return {"enum": values}

    def _branches(self, node: Schema, keyword: str, path: str, depth: int) -> Schema:
        self._alone(node, keyword, path, ("type",))
        branches = node[keyword]
        if not isinstance(branches, list) or not branches:
            refuse(f"{path}/{keyword}", "it must be a list of at least one schema")
        if "type" in node:
            for index, branch in enumerate(branches):
                if (
                    not isinstance(branch, Mapping)
                    or not are_equal(branch.get("type", node["type"]), node["type"])
                    or "$ref" in branch
                ):
                    refuse(f"{path}/type", f"it stands beside {keyword}; write it into each alternative")
                branches = [*branches[:index], {**branch, "type": node["type"]}, *branches[index + 1 :]]
        read = [self._schema(branch, f"{path}/{keyword}/{index}", depth + 1) for index, branch in enumerate(branches)]
        if keyword == "oneOf" and not are_exclusive(read, self._definitions, self._untyped):
            refuse(f"{path}/oneOf", "several of its schemas may fit one value; use anyOf, or a const that differs")
        return {"anyOf": read}

    def _types(self, value: object, path: str) -> list[str]:
        names = value if isinstance(value, list) else [value]
        if not names or any(not isinstance(name, str) or name not in TYPES for name in names):
            refuse(path, f"{shown(value)} is no type; there are {', '.join(TYPES)}")
        return list(dict.fromkeys(names))

    def _typed(self, node: Schema, path: str, depth: int) -> Schema:
        if "type" in node:
            names = self._types(node["type"], f"{path}/type")
        else:
            # What a schema says about one type leaves the others free; here it also chooses that type.
            names = [name for name, keywords in KEYWORDS.items() if any(keyword in node for keyword in keywords)]
        if not names:
            return {}
        read = [self._of_type(name, node, path, depth) for name in names]
        if len(read) > 1:
            return {"anyOf": read}
        if "type" not in node:
            self._untyped[id(read[0])] = read[0]
        return read[0]

    def _of_type(self, name: str, node: Schema, path: str, depth: int) -> Schema:
        own = {keyword: node[keyword] for keyword in KEYWORDS[TYPES[name]] if keyword in node}
        if name == "string":
            return {"type": name, **self._string(own, path)}
        if name in ("number", "integer"):
            found = number_limits(name, own, path)
            self._work += int(found.get("multipleOf", 0))
            return {"type": name, **found}
        if name == "array":
            return {"type": name, **self._array(own, path, depth)}
        if name == "object":
            return {"type": name, **self._object(own, path, depth)}
        return {"type": name}

    def _string(self, node: Schema, path: str) -> Schema:
        counted = limits(node, ("minLength", "maxLength"), path, MAX_LENGTH)
        special = [keyword for keyword in ("pattern", "format") if keyword in node]
        if not special:
            return counted
        if counted or len(special) > 1:
            refuse(f"{path}/{[*special, *counted][1]}", f"it stands beside {special[0]}; say all of it in a pattern")
        value = node[special[0]]
        if special[0] == "format":
            if not isinstance(value, str) or value not in FORMATS:
                refuse(f"{path}/format", f"{shown(value)} is not among {', '.join(FORMATS)}; use a pattern")
            return self._matching(format_regex(value))
        if not isinstance(value, str):
            refuse(f"{path}/pattern", f"{shown(value)} must be a text")
        return self._matching(parse_regex(value, f"the pattern at {path}").found())

    def _matching(self, regex: Regex) -> Schema:
        return {"pattern": pattern_name(self._texts.setdefault(in_json(regex), len(self._texts)))}

    def _array(self, node: Schema, path: str, depth: int) -> Schema:
        if node.get("uniqueItems", False) is not False:
            refuse(f"{path}/uniqueItems", "a grammar cannot compare items")
        if node.get("unevaluatedItems", True) is not True:
            refuse(f"{path}/unevaluatedItems", "give items: false behind prefixItems")
        found = limits(node, ("minItems", "maxItems"), path, MAX_ITEMS)
        keyword, items = "prefixItems", node.get("items", True)
        if isinstance(items, list):
            if "prefixItems" in node:
                refuse(f"{path}/items", "a list stands beside prefixItems; give one of them")
            keyword, items = "items", node.get("additionalItems", True)
        if keyword in node:
            prefix = node[keyword]
            if not isinstance(prefix, list) or not prefix:
                refuse(f"{path}/{keyword}", "it must be a list of at least one schema")
            prefix = prefix[: found.get("maxItems", len(prefix))]
            found["prefixItems"] = [
                self._schema(part, f"{path}/{keyword}/{index}", depth + 1) for index, part in enumerate(prefix)
            ]
        if items is False and found.get("minItems", 0) > len(found.get("prefixItems", ())):
            refuse(f"{path}/minItems", "so many items are not allowed")
        found["items"] = items if items is False else self._schema(items, f"{path}/items", depth + 1)
        return found

    def _object(self, node: Schema, path: str, depth: int) -> Schema:
        properties, required = node.get("properties", {}), node.get("required", [])
        if not isinstance(properties, Mapping):
            refuse(f"{path}/properties", "it must be an object")
        if not isinstance(required, list) or any(not isinstance(name, str) for name in required):
            refuse(f"{path}/required", "it must be a list of names")
        if node.get("unevaluatedProperties", False) is not False:
            refuse(f"{path}/unevaluatedProperties", "give additionalProperties instead")
        other = node.get("additionalProperties", not properties and "unevaluatedProperties" not in node)
        missing = [name for name in required if name not in properties]
        if missing and other is False and ("additionalProperties" in node or "unevaluatedProperties" in node):
            refuse(f"{path}/required", f"{shown(missing[0])} is required and no property of that name is allowed")
        properties = {**properties, **{name: other or True for name in missing}}
        optional = len(properties) - len(set(required))
        if optional > MAX_OPTIONAL:
            refuse(f"{path}/properties", f"more than {MAX_OPTIONAL} of them are optional")
        found: Schema = limits(node, ("minProperties", "maxProperties"), path, MAX_ITEMS)
        if found.get("maxProperties", MAX_ITEMS) < len(set(required)):
            refuse(f"{path}/maxProperties", "more are required")
        found["properties"] = {
            name: self._schema(value, f"{path}/properties/{escaped(name)}", depth + 1)
            for name, value in properties.items()
        }
        found["required"] = list(dict.fromkeys(required))
        if "minProperties" in found or "maxProperties" in found:
            most = found.get("maxProperties", MAX_ITEMS)
            self._work += len(properties) * min(len(properties), most)
        if other is False or (other is True and properties and "additionalProperties" not in node):
            if "propertyNames" in node:
                refuse(f"{path}/propertyNames", "the properties are named already")
            if found.get("minProperties", 0) > len(properties):
                refuse(f"{path}/minProperties", "so many properties are not allowed")
            return {**found, "additionalProperties": False}
        if "minProperties" in found:
            refuse(f"{path}/minProperties", "additional properties may be named twice and count once")
        found["additionalProperties"] = self._schema(other, f"{path}/additionalProperties", depth + 1)
        found["propertyNames"] = self._names_of_others(node, list(properties), path)
        return found

    def _names_of_others(self, node: Schema, names: Sequence[str], path: str) -> Schema:
        asked = node.get("propertyNames", True)
        if asked is True:
            number = self._texts.setdefault(other_names(names), len(self._texts))
            return {"pattern": pattern_name(number)}
        if names or not isinstance(asked, Mapping) or set(asked) - ANNOTATIONS - {"type", "pattern"}:
            refuse(f"{path}/propertyNames", "only a pattern is understood, in an object without properties")
        if "type" in asked and "string" not in self._types(asked["type"], f"{path}/propertyNames/type"):
            refuse(f"{path}/propertyNames/type", "names are strings")
        return self._string({"pattern": asked.get("pattern", "")}, f"{path}/propertyNames")
