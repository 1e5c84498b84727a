//! Pages for people: `/` and `/docs`. Made once at the start; no script, nothing from elsewhere.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue};
use serde_json::Value;
use utoipa::openapi::OpenApi;

use crate::app::App;

const STYLE: &str = include_str!("pages.css");
/// Our own style sheet and nothing else: no script, no frame, no form.
const POLICY: &str =
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const LANDING: &str = r#"<h1>Windlass</h1>
<p>A replicated task queue. This server works.</p>
<ul>
<li><a href="/docs">/docs</a>: every call, with its fields</li>
<li><a href="/openapi.json">/openapi.json</a>: the same for programs</li>
<li><a href="/v1/queues">/v1/queues</a>: what the queues hold</li>
<li><a href="/v1/workers">/v1/workers</a>: who works</li>
<li><a href="/v1/cluster">/v1/cluster</a>: how the servers are</li>
<li><a href="/metrics">/metrics</a>: numbers for Prometheus</li>
</ul>
<p>A first task:</p>
<pre>curl -d '{"kind":"hello","payload":{"name":"Ada"}}' http://127.0.0.1:7420/v1/queues/demo/tasks</pre>
"#;

/// The pages, ready to send.
#[derive(Clone)]
pub(super) struct Pages {
    landing: Bytes,
    docs: Bytes,
}

impl Pages {
    /// Writes the pages of this description.
    pub(super) fn new(api: &OpenApi) -> Arc<Pages> {
        let api = serde_json::to_value(api).expect("a description is strings and maps");
        let pages =
            Pages { landing: page("Windlass", LANDING), docs: page("Windlass: every call", &docs(&api)) };
        Arc::new(pages)
    }
}

/// The pages' routes.
pub(super) fn routes(pages: Arc<Pages>) -> Router<App> {
    let (landing, docs) = (pages.landing.clone(), pages.docs.clone());
    Router::new()
        .route("/", get(move || async move { html(landing) }))
        .route("/docs", get(move || async move { html(docs) }))
        .route("/pages.css", get(|| async { sent("text/css; charset=utf-8", STYLE.into()) }))
}

fn html(text: Bytes) -> Response {
    sent("text/html; charset=utf-8", text.into())
}

fn sent(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(HeaderName::from_static("referrer-policy"), HeaderValue::from_static("no-referrer"));
    response
}

fn page(title: &str, main: &str) -> Bytes {
    let text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><link rel=\"stylesheet\" href=\"/pages.css\"></head>\n<body><main>\n{main}</main></body></html>\n"
    );
    text.into()
}

/// Every call by tag, then every shape.
fn docs(api: &Value) -> String {
    let mut out = String::new();
    let info = &api["info"];
    put(&mut out, format_args!("<h1>{} {}</h1>\n", text(&info["title"]), text(&info["version"])));
    put(
        &mut out,
        format_args!(
            "<p>{}</p>\n<p><a href=\"/openapi.json\">/openapi.json</a></p>\n",
            text(&info["description"])
        ),
    );
    for tag in list(&api["tags"]) {
        let name = tag["name"].as_str().unwrap_or_default();
        put(&mut out, format_args!("<h2>{}</h2>\n<p>{}</p>\n", escape(name), text(&tag["description"])));
        for (path, methods) in map(&api["paths"]) {
            for (method, call) in map(methods).filter(|(_, call)| list(&call["tags"]).any(|t| t == name)) {
                write_call(&mut out, method, path, call);
            }
        }
    }
    out.push_str("<h2>shapes</h2>\n");
    for (name, schema) in map(&api["components"]["schemas"]) {
        put(&mut out, format_args!("<details id=\"{0}\"><summary>{0}</summary>\n", escape(name)));
        write_schema(&mut out, schema);
        out.push_str("</details>\n");
    }
    out
}

fn write_call(out: &mut String, method: &str, path: &str, call: &Value) {
    let method = method.to_uppercase();
    put(
        out,
        format_args!(
            "<details><summary><b>{method}</b> <code>{}</code> {}</summary>\n",
            escape(path),
            text(&call["summary"])
        ),
    );
    if call["description"].is_string() {
        put(out, format_args!("<p>{}</p>\n", text(&call["description"])));
    }
    let parameters: Vec<&Value> = list(&call["parameters"]).collect();
    if !parameters.is_empty() {
        out.push_str("<table><tr><th>parameter</th><th>in</th><th></th></tr>\n");
        for parameter in parameters {
            let cells = [&parameter["name"], &parameter["in"], &parameter["description"]].map(text);
            put(
                out,
                format_args!(
                    "<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>\n",
                    cells[0], cells[1], cells[2]
                ),
            );
        }
        out.push_str("</table>\n");
    }
    for (_, media) in map(&call["requestBody"]["content"]) {
        put(out, format_args!("<p>body: {}</p>\n", type_of(&media["schema"])));
    }
    for (status, response) in map(&call["responses"]) {
        put(out, format_args!("<p>{}: {}", escape(status), text(&response["description"])));
        for (kind, media) in map(&response["content"]) {
            put(out, format_args!(" – {} <small>{}</small>", type_of(&media["schema"]), escape(kind)));
        }
        out.push_str("</p>\n");
    }
    out.push_str("</details>\n");
}

fn write_schema(out: &mut String, schema: &Value) {
    if schema["description"].is_string() {
        put(out, format_args!("<p>{}</p>\n", text(&schema["description"])));
    }
    if schema["properties"].is_object() {
        let required = &schema["required"];
        out.push_str("<table><tr><th>field</th><th>type</th><th></th></tr>\n");
        for (name, field) in map(&schema["properties"]) {
            let mark = if list(required).any(|r| r == name.as_str()) { " *" } else { "" };
            put(
                out,
                format_args!(
                    "<tr><td><code>{}</code>{mark}</td><td>{}</td><td>{}</td></tr>\n",
                    escape(name),
                    type_of(field),
                    text(&field["description"])
                ),
            );
        }
        out.push_str("</table>\n");
    } else {
        put(out, format_args!("<p>{}</p>\n", type_of(schema)));
    }
    if !schema["example"].is_null() {
        put(out, format_args!("<pre>{}</pre>\n", escape(&schema["example"].to_string())));
    }
}

/// A schema in a few words, linked to the shape it names.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return format!("<a href=\"#{0}\">{0}</a>", escape(name));
    }
    for (word, options) in [("or", &schema["oneOf"]), ("or", &schema["anyOf"]), ("and", &schema["allOf"])] {
        let options: Vec<String> = list(options).map(type_of).collect();
        if !options.is_empty() {
            return options.join(&format!(" {word} "));
        }
    }
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words.iter().map(|word| escape(&word.to_string())).collect();
        return words.join(" | ");
    }
    match &schema["type"] {
        Value::String(kind) if kind == "array" => format!("list of {}", type_of(&schema["items"])),
        Value::String(kind) => escape(kind),
        Value::Array(kinds) => kinds.iter().map(text).collect::<Vec<_>>().join(" | "),
        _ => "any JSON".to_owned(),
    }
}

fn map(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    escape(value.as_str().unwrap_or_default())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("memory takes every write");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_markup_is_escaped() {
        let api = serde_json::json!({
            "info": {"title": "<b>", "version": "1", "description": "a & b"},
            "tags": [{"name": "t", "description": "d"}],
            "paths": {"/x": {"get": {"tags": ["t"], "summary": "<script>", "responses": {}}}},
            "components": {"schemas": {"S": {"type": "object", "properties": {"f": {"type": "string"}}}}},
        });
        let docs = docs(&api);
        assert!(!docs.contains("<script>") && docs.contains("&lt;script&gt;"), "{docs}");
        assert!(docs.contains("a &amp; b") && docs.contains("<code>f</code>"), "{docs}");
    }
}
