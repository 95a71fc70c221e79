// The API in words, from /openapi.json.
const api = await (await fetch("/openapi.json")).json();

function make(tag, text, className = "") {
  return Object.assign(document.createElement(tag), { textContent: text, className });
}

for (const [path, operations] of Object.entries(api.paths)) {
  for (const [method, operation] of Object.entries(operations)) {
    const card = make("section", "", "card");
    const title = make("h2", "");
    title.append(make("span", method.toUpperCase(), "method"), ` ${path}`);
    const words = make("p", "");
    words.append(...`${operation.summary}. ${operation.description}`.split("`").map((part, k) => make(k % 2 ? "code" : "span", part)));
    card.append(title, words);
    const inputs = operation.parameters.map((each) => `${each.name} (${each.in})${each.description ? `: ${each.description}` : ""}`);
    if (operation.requestBody) inputs.push(`body: ${Object.keys(operation.requestBody.content).join(" or ")}`);
    if (inputs.length) card.append(make("p", inputs.join("; "), "quiet small"));
    const target = path.replaceAll(/{(\w+)}/g, (_, name) => name.toUpperCase());
    const body = operation.requestBody ? ("application/json" in operation.requestBody.content ? ` -d '{"name": "NEW"}'` : " -F images=@photo.jpg") : "";
    const verb = method === "get" || (method === "post" && body) ? "" : ` -X ${method.toUpperCase()}`;
    card.append(make("pre", `curl${verb}${body} ${location.origin}${target}`));
    document.getElementById("list").append(card);
  }
}
