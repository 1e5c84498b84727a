//! Plots as SVG: bars for figures side by side, lines over a logarithmic axis. Readable on light and on dark.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const ROW: f64 = 26.0;
/// Where bars begin: names stand left of it.
const LEFT: f64 = 250.0;
/// Room for figures right of a bar.
const RIGHT: f64 = 80.0;
const TOP: f64 = 44.0;
const HEIGHT: f64 = 320.0;

const OURS: &str = "#2f6fde";
const THEIRS: &str = "#8a93a3";
const LINES: [&str; 4] = ["#2f6fde", "#d9822b", "#2a9d6f", "#a34fc4"];

/// Bars from the left, in the given order; ours in another colour.
pub(super) fn bars(title: &str, bars: &[(String, f64)]) -> String {
    let most = bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let height = TOP + ROW * bars.len() as f64 + 12.0;
    let mut out = begin(title, height);
    for (n, (name, value)) in bars.iter().enumerate() {
        let y = TOP + ROW * n as f64;
        let length = (value / most * (WIDTH - LEFT - RIGHT)).max(1.0);
        let colour = if name.starts_with("Windlass") { OURS } else { THEIRS };
        let middle = y + ROW / 2.0 + 1.0;
        let _ = write!(
            out,
            r#"<text x="{}" y="{middle}" text-anchor="end">{}</text>
<rect x="{LEFT}" y="{}" width="{length:.1}" height="{}" rx="2" fill="{colour}"/>
<text x="{:.1}" y="{middle}">{}</text>
"#,
            LEFT - 8.0,
            escaped(name),
            y + 4.0,
            ROW - 8.0,
            LEFT + length + 6.0,
            figure(*value)
        );
    }
    out + "</svg>\n"
}

/// Lines over a logarithmic x axis; y begins at 0.
pub(super) fn lines(title: &str, lines: &[(&str, Vec<(f64, f64)>)]) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let most = points().map(|(_, y)| y).fold(f64::MIN_POSITIVE, f64::max);
    let log = |x: f64| x.max(1.0).log10();
    let first = points().map(|(x, _)| log(x)).fold(f64::INFINITY, f64::min);
    let last = points().map(|(x, _)| log(x)).fold(first + 1.0, f64::max);
    let (left, bottom) = (70.0, HEIGHT - 40.0);
    let x_of = |x: f64| left + (log(x) - first) / (last - first) * (WIDTH - left - 170.0);
    let y_of = |y: f64| bottom - y / most * (bottom - TOP);
    let mut out = begin(title, HEIGHT);
    for part in [0.0, 0.5, 1.0] {
        let y = y_of(most * part);
        let _ = writeln!(
            out,
            r##"<line x1="{left}" y1="{y:.1}" x2="{:.1}" y2="{y:.1}" stroke="#8a93a3" stroke-opacity="0.4"/><text x="{}" y="{y:.1}" text-anchor="end">{}</text>"##,
            WIDTH - 170.0,
            left - 8.0,
            figure(most * part)
        );
    }
    if let Some((_, points)) = lines.first() {
        for (x, _) in points {
            let _ = writeln!(
                out,
                r#"<text x="{:.1}" y="{}" text-anchor="middle">{}</text>"#,
                x_of(*x),
                bottom + 20.0,
                figure(*x)
            );
        }
    }
    for ((name, points), colour) in lines.iter().zip(LINES) {
        let path: Vec<String> =
            points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_of(*y))).collect();
        let _ = writeln!(
            out,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
            path.join(" ")
        );
        if let Some((x, y)) = points.last() {
            let (x, y) = (x_of(*x) + 8.0, y_of(*y));
            let _ = writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" fill="{colour}">{}</text>"#, escaped(name));
        }
    }
    out + "</svg>\n"
}

fn begin(title: &str, height: f64) -> String {
    let title = escaped(title);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="13" fill="#6b7483" dominant-baseline="middle">
<title>{title}</title>
<text x="12" y="22" font-size="16" font-weight="600">{title}</text>
"##
    )
}

fn figure(value: f64) -> String {
    match value {
        1_000_000.0.. => format!("{}M", short(value / 1e6)),
        1_000.0.. => format!("{}k", short(value / 1e3)),
        _ => short(value),
    }
}

fn short(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        _ => format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        for (value, expected) in
            [(0.0, "0"), (0.36, "0.36"), (12.0, "12"), (950.0, "950"), (17_800.0, "17.8k"), (1e7, "10M")]
        {
            assert_eq!(figure(value), expected);
        }
    }

    #[test]
    fn the_longest_bar_fills_the_room() {
        let plot = bars("t", &[("a".to_owned(), 10.0), ("b".to_owned(), 5.0)]);
        assert!(plot.contains(r#"width="430.0""#) && plot.contains(r#"width="215.0""#), "{plot}");
    }
}
