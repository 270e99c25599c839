//! Charts as SVG: one column per image, stacked by series, or one bar per image on a line of time.
//!
//! Used by `holdfast report`. Pure. What must hold: nothing that is drawn is outside the picture, whatever the numbers
//! are; every column says its numbers when it is pointed at.

use super::escape;
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 12.0;
const HEIGHT: f64 = 180.0;
const BOTTOM: f64 = 24.0;
/// Lines across.
const STEPS: u32 = 4;
/// Most words below the columns.
const WORDS: usize = 15;

/// One column.
#[derive(Clone, PartialEq, Debug)]
pub struct Column {
    /// Below it.
    pub name: String,
    /// By series.
    pub values: Vec<f64>,
}

/// A bar on a line of time.
#[derive(Clone, PartialEq, Debug)]
pub struct Bar {
    /// What it says when it is pointed at.
    pub name: String,
    /// From, and how long; of the same unit.
    pub start: f64,
    /// See `start`.
    pub len: f64,
}

/// The next number of the form 1, 2, 2.5, 5 times a power of ten: where an axis ends well.
fn round_up(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    steps.iter().map(|step| step * power).find(|end| *end >= value).unwrap_or(value)
}

fn open(height: f64, what: &str) -> String {
    let what = escape(what);
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{what}\">\n")
}

/// Columns, stacked; `say` puts a value into words.
pub fn stacked(what: &str, series: &[&str], columns: &[Column], say: impl Fn(f64) -> String) -> String {
    let sum = |column: &Column| column.values.iter().filter(|value| value.is_finite()).sum::<f64>();
    let end = round_up(columns.iter().map(sum).fold(0.0, f64::max));
    let mut out = open(TOP + HEIGHT + BOTTOM, what);
    for step in 0..=STEPS {
        let value = end * f64::from(step) / f64::from(STEPS);
        let y = TOP + HEIGHT * (1.0 - value / end);
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            escape(&say(value))
        );
    }
    let step = (WIDTH - LEFT) / columns.len().max(1) as f64;
    let every = columns.len().div_ceil(WORDS).max(1);
    for (index, column) in columns.iter().enumerate() {
        let x = LEFT + step * index as f64;
        let wide = (step * 0.8).min(48.0);
        out.push_str(&one(column, series, (x + (step - wide) / 2.0, wide), end, &say));
        if index % every == 0 {
            let (middle, below) = (x + step / 2.0, TOP + HEIGHT + 16.0);
            let _ = write!(
                out,
                "<text x=\"{middle:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{}</text>",
                escape(&column.name)
            );
        }
    }
    out + "</svg>\n" + &key(series)
}

fn one(
    column: &Column,
    series: &[&str],
    (x, wide): (f64, f64),
    end: f64,
    say: impl Fn(f64) -> String,
) -> String {
    let mut title = format!("image {}", column.name);
    let (mut parts, mut below) = (String::new(), 0.0);
    for (number, (name, value)) in series.iter().zip(&column.values).enumerate() {
        if !value.is_finite() || *value <= 0.0 {
            continue;
        }
        let height = HEIGHT * value / end;
        let y = TOP + HEIGHT - below - height;
        below += height;
        let _ = write!(title, "\n{name}: {}", say(*value));
        let _ = write!(
            parts,
            "<rect x=\"{x:.1}\" y=\"{y:.2}\" width=\"{wide:.1}\" height=\"{height:.2}\" fill=\"var(--c{})\"/>",
            number % 9
        );
    }
    format!("<g><title>{}</title>{parts}</g>\n", escape(&title))
}

fn key(series: &[&str]) -> String {
    let one = |(number, name): (usize, &&str)| {
        format!("<span><i style=\"background:var(--c{})\"></i>{}</span>", number % 9, escape(name))
    };
    format!("<div class=\"key\">{}</div>\n", series.iter().enumerate().map(one).collect::<String>())
}

/// Bars on a line of time from the first to the end of the last. `ends`: what is written at both.
pub fn timeline(what: &str, bars: &[Bar], ends: (&str, &str)) -> String {
    const TALL: f64 = 26.0;
    let start = bars.iter().map(|bar| bar.start).fold(f64::INFINITY, f64::min);
    let end = bars.iter().map(|bar| bar.start + bar.len).fold(f64::NEG_INFINITY, f64::max);
    let range = if end > start { end - start } else { 1.0 };
    let mut out = open(TOP + TALL + BOTTOM, what);
    let base = TOP + TALL;
    let _ = write!(
        out,
        "<line class=\"axis\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{base}\" y2=\"{base}\"/>\
         <text x=\"0\" y=\"{0}\">{1}</text><text x=\"{WIDTH}\" y=\"{0}\" text-anchor=\"end\">{2}</text>",
        base + 16.0,
        escape(ends.0),
        escape(ends.1)
    );
    for bar in bars {
        // One that is shorter than a point is drawn as a point.
        let wide = (bar.len / range * WIDTH).clamp(2.0, WIDTH);
        let x = ((bar.start - start) / range * WIDTH).clamp(0.0, WIDTH - wide);
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{TOP}\" width=\"{wide:.1}\" height=\"{TALL}\" fill=\"var(--c0)\">\
             <title>{}</title></rect>",
            escape(&bar.name)
        );
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        let ends = [0.0, -1.0, f64::NAN, 0.7, 1.0, 1.1, 2.2, 3.0, 51.0, 1e9].map(round_up);
        assert_eq!(ends, [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.5, 5.0, 100.0, 1e9]);
    }

    /// Of each rectangle, the numbers behind two names.
    fn rectangles(svg: &str, names: [&str; 2]) -> Vec<[f64; 2]> {
        let number = |piece: &str, name: &str| {
            let (_, after) = piece.split_once(&format!("{name}=\""))?;
            after.split('"').next()?.parse().ok()
        };
        let pieces = svg.split("<rect ").skip(1);
        pieces.filter_map(|piece| Some([number(piece, names[0])?, number(piece, names[1])?])).collect()
    }

    #[test]
    fn nothing_is_drawn_outside() {
        let column = |values: &[f64]| Column { name: "<1>".into(), values: values.to_vec() };
        let columns = [column(&[1.0, 2.0]), column(&[f64::NAN, 1e12]), column(&[-3.0, f64::INFINITY])];
        let svg = stacked("what", &["a", "b"], &columns, |value| format!("{value} <ms>"));
        assert!(!svg.contains("<ms>") && !svg.contains("<1>") && !svg.contains("NaN"), "{svg}");
        let found = rectangles(&svg, ["y", "height"]);
        assert_eq!(found.len(), 3);
        for [y, height] in found {
            assert!(y >= 0.0 && y + height <= TOP + HEIGHT + BOTTOM, "{y} {height}");
        }
        let bars = [(0.0, 0.0), (5.0, 100.0), (50.0, 1e-9)];
        let bars = bars.map(|(start, len)| Bar { name: String::new(), start, len });
        let svg = timeline("what", &bars, ("<", ">"));
        let found = rectangles(&svg, ["x", "width"]);
        assert_eq!(found.len(), 3);
        for [x, width] in found {
            assert!(x >= 0.0 && x + width <= WIDTH + 0.1, "{x} {width}");
        }
    }

    #[test]
    fn nothing_at_all_is_a_picture_too() {
        assert!(stacked("what", &[], &[], |value| value.to_string()).contains("</svg>"));
        assert!(timeline("what", &[], ("", "")).contains("</svg>"));
    }
}
