//! Pages of HTML that need nothing else: no script, no other file, light or dark as the reader's screen is.
//!
//! Used by `holdfast report`. [`chart`] draws; here are the shell of a page, its tables, and what makes any text safe.
//! What must hold: every text that is not from this file goes through [`escape`].

pub mod chart;

/// Text as it may stand in HTML and in attributes. Characters that a page may not have become question marks.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Forbidden in HTML (standard of WHATWG, 13.2.3.5), and of no use to a reader.
            other if other.is_control() && other != '\n' && other != '\t' => out.push('?'),
            other => out.push(other),
        }
    }
    out
}

/// A table; columns of `right` have numbers.
pub fn table(head: &[&str], rows: &[Vec<String>], right: &[usize]) -> String {
    let class = |column: usize| if right.contains(&column) { " class=\"n\"" } else { "" };
    let mut out = String::from("<div class=\"wide\"><table><thead><tr>");
    for (column, name) in head.iter().enumerate() {
        out.push_str(&format!("<th{}>{}</th>", class(column), escape(name)));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            out.push_str(&format!("<td{}>{}</td>", class(column), escape(cell)));
        }
        out.push_str("</tr>\n");
    }
    out + "</tbody></table></div>\n"
}

/// Figures that matter most, with what they are.
pub fn tiles(tiles: &[(&str, String)]) -> String {
    let tile = |(what, value): &(&str, String)| {
        format!("<div class=\"tile\"><b>{}</b><span>{}</span></div>", escape(value), escape(what))
    };
    format!("<div class=\"tiles\">{}</div>\n", tiles.iter().map(tile).collect::<String>())
}

/// A chapter.
pub fn section(title: &str, explanation: &str, content: &str) -> String {
    format!("<section><h2>{}</h2>\n<p>{}</p>\n{content}</section>\n", escape(title), escape(explanation))
}

/// A whole page. `body` is HTML.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>{STYLE}</style></head>\n<body><main>\n{body}</main></body></html>\n",
        escape(title)
    )
}

/// Colours of series have the same order of lightness in both schemes, so that they are told apart in print, too.
const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6570;--line:#d5dae0;--card:#f5f7f9;--page:#fff;
--c0:#2563a8;--c1:#e08a1e;--c2:#3a8f5c;--c3:#b9433f;--c4:#7a5aa8;--c5:#5aa9b8;--c6:#a9a12b;--c7:#c97ba5;--c8:#7d8894}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#9aa5b1;--line:#38414b;--card:#1d232a;--page:#14181d;
--c0:#6aa5e6;--c1:#f0b05c;--c2:#6fc491;--c3:#e67d78;--c4:#b195dd;--c5:#8ad2df;--c6:#d6ce62;--c7:#e5a9c9;--c8:#aab4bf}}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:1.6em;margin:.2em 0}h2{font-size:1.15em;margin:2em 0 .2em}p{color:var(--soft);margin:.2em 0 .8em}
code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:18px 0}
.tile{background:var(--card);border-radius:8px;padding:10px 16px;min-width:110px}
.tile b{display:block;font-size:1.3em;font-weight:600}.tile span{color:var(--soft);font-size:.85em}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9em}
th,td{text-align:left;padding:3px 14px 3px 0;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500}.n{text-align:right;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font:11px system-ui,sans-serif}
.axis{stroke:var(--line);stroke-width:1}.key{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.85em;
color:var(--soft);margin:4px 0 0}.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        let hostile = "<script>\"a\"&'b'</script>\u{0}\u{1b}[1m";
        let safe = "&lt;script&gt;&quot;a&quot;&amp;&#39;b&#39;&lt;/script&gt;??[1m";
        assert_eq!(escape(hostile), safe);
        let rows = [vec![hostile.to_owned()]];
        let all = page(hostile, &(table(&[hostile], &rows, &[]) + &section(hostile, hostile, "")));
        assert!(!all.contains("<script"), "{all}");
        assert!(!tiles(&[(hostile, hostile.to_owned())]).contains("<script"));
    }
}
