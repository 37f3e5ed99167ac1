"""The style sheet of the page: system fonts, light and dark, tables that scroll in their own box on a narrow screen."""

STYLE = """
:root{--ink:#1a1a1a;--faint:#667;--line:#dde;--paper:#fff;--box:#f5f6f8}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--faint:#99a;--line:#334;--paper:#16181c;--box:#20232a}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:16px}
h1{font-size:22px;margin:4px 0 12px;overflow-wrap:anywhere}
h2{font-size:17px;margin:26px 0 8px;border-bottom:1px solid var(--line);padding-bottom:4px}
h3{font-size:14px;margin:14px 0 4px;color:var(--faint)}
p{margin:6px 0}
.tiles{display:flex;flex-wrap:wrap;gap:8px}
.tiles div{background:var(--box);border-radius:6px;padding:8px 12px;min-width:110px}
.tiles b{display:block;font-size:17px}
.tiles span{color:var(--faint);font-size:12px}
.wide{overflow-x:auto;margin:8px 0}
.wide svg{max-width:none;background:#fff}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:3px 9px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{color:var(--faint);font-weight:600}
.t{text-align:left}
.bar{display:flex;height:16px;border-radius:3px;overflow:hidden;background:var(--box);width:100%}
.bar i{display:block;height:100%}
.bars .row{display:flex;align-items:center;gap:8px;margin:2px 0}
.bars .row>span{width:40px;text-align:right;color:var(--faint);font-size:12px;flex:none}
.legend{font-size:12px;color:var(--faint)}
.legend span{display:inline-block;margin-right:12px}
.legend i{display:inline-block;width:10px;height:10px;margin-right:4px}
.c0{background:#3b78c4}.c1{background:#e0913a}.c2{background:#2f9e77}.c3{background:#c2557f}.c4{background:#8a8f99}
.c5{background:#7a5cc0}.c6{background:#b8a12c}.c7{background:#4fb3c8}.c8{background:#a0522d}.c9{background:#5a7d3a}
"""
