"use strict";

function element(kind, text, ...inside) {
  const made = document.createElement(kind);
  made.textContent = text;
  made.append(...inside);
  return made;
}

function nameOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.anyOf) return schema.anyOf.map(nameOf).join(" or ");
  if (schema.type === "array") return `list of ${nameOf(schema.items || {})}`;
  return schema.type || "anything";
}

function table(headings, rows) {
  const row = (kind) => (cells) => element("tr", "", ...cells.map((cell) => element(kind, cell)));
  const head = element("thead", "", row("th")(headings));
  return element("table", "", head, element("tbody", "", ...rows.map(row("td"))));
}

function fields(schema) {
  const required = schema.required || [];
  return Object.entries(schema.properties || {}).map(([name, field]) =>
    [required.includes(name) ? `${name} (required)` : name, nameOf(field), field.description || ""]);
}

function endpoint(path, method, operation) {
  const section = element("section", "");
  section.append(element("h2", `${method.toUpperCase()} ${path}`), element("p", operation.description || ""));
  const body = operation.requestBody && operation.requestBody.content["application/json"].schema;
  if (body) section.append(element("p", `Body: ${nameOf(body)}`));
  const answers = Object.entries(operation.responses).map(([status, answer]) => {
    const content = Object.values(answer.content || {}).map((kind) => nameOf(kind.schema || {}));
    return [status, content.join(" or "), answer.description];
  });
  section.append(table(["status", "body", "meaning"], answers));
  return section;
}

async function show() {
  const description = await (await fetch("openapi.json")).json();
  const { info, paths, components } = description;
  document.getElementById("about").textContent = `${info.version}. ${info.description}`;
  const place = document.getElementById("endpoints");
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, operation] of Object.entries(methods)) place.append(endpoint(path, method, operation));
  }
  for (const [name, schema] of Object.entries(components.schemas)) {
    const heading = element("h2", name);
    heading.id = name;
    place.append(heading, element("p", schema.description || ""), table(["field", "kind", "meaning"], fields(schema)));
  }
}

show();
