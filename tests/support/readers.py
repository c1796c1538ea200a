"""What every page must offer its readers, measured in a browser."""

CONTRAST = """selectors => {
  const light = (colour) => { const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => { const c = part / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const solid = (one) => { const at = getComputedStyle(one).backgroundColor; return /, 0\\)$/.test(at) && one.parentElement ? solid(one.parentElement) : at; };
  const nodes = [...document.querySelectorAll("#circuit .node")].map((node) => [node.dataset.node, getComputedStyle(node.querySelector("text")).fill, getComputedStyle([...node.querySelectorAll("rect")].at(-1)).fill]);
  const words = [...document.querySelectorAll(selectors)].filter((one) => one.checkVisibility() && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())).map((one) => [one.textContent, getComputedStyle(one).color, solid(one)]);
  return [...nodes, ...words].map(([name, a, b]) => [contrast(a, b), name]).sort(([a], [b]) => a - b)[0];
}"""  # noqa: E501

SMALLEST = """selector => Math.min(...[...document.querySelectorAll(selector)].flatMap((root) => [root, ...root.querySelectorAll("*")])
  .filter((one) => one.checkVisibility({ opacityProperty: true }) && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((one) => parseFloat(getComputedStyle(one).fontSize) * (one.getScreenCTM ? one.getScreenCTM().a : 1)))"""  # noqa: E501

NAMELESS = """() => [...document.querySelectorAll('button, select, input, svg[role], [role=region], [role=group]')]
  .filter((one) => !(one.getAttribute('aria-label') || one.textContent.trim() || one.title || one.closest('label'))).length"""  # noqa: E501

CLICKED = """selector => { const start = performance.now(); document.querySelector(selector)
  .dispatchEvent(new MouseEvent("click", { bubbles: true })); document.body.offsetHeight; return performance.now() - start; }"""  # noqa: E501

RINGED = """() => { const one = document.activeElement; const rect = [...one.querySelectorAll?.('rect') ?? []].at(-1);
  return getComputedStyle(one).outlineStyle !== 'none' || (rect && parseFloat(getComputedStyle(rect).strokeWidth) > 2); }"""  # noqa: E501


def least_contrast(page, selectors="main *"):
    """The lowest contrast between type and what is behind it, and where."""
    return page.evaluate(CONTRAST, selectors)


def check_phone(page, width=390):
    """No sideways scrolling but inside tables and pictures; controls that a finger hits; type that an eye reads."""
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(SMALLEST, "main") >= 8
    hidden = page.evaluate(
        "width => [...document.querySelectorAll('main button, main select, main input')].filter((one) => "
        "one.checkVisibility() && !one.closest('.frame, .heat') && "
        "(one.getBoundingClientRect().right > width || one.offsetHeight < 18)).map((one) => one.outerHTML)",
        width,
    )
    assert hidden == []


def check_paper(page, scheme):
    """Black on white, no controls, nothing cut off, nothing beside the paper."""
    page.emulate_media(media="print", color_scheme=scheme)
    page.wait_for_timeout(150)
    for control in (".tools", "#theme", "#keys", ".more"):
        assert not any(part.is_visible() for part in page.locator(control).all()), control
    style = "getComputedStyle(document.body)"
    assert page.evaluate(f"[{style}.backgroundColor, {style}.color]") == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    clipped = page.evaluate(
        "[...document.querySelectorAll('.frame, .heat, .quoted')].filter((one) => one.scrollHeight > one.clientHeight "
        "+ 1 && getComputedStyle(one).overflowY !== 'visible').length"
    )
    assert clipped == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert len(page.pdf(format="A4")) > 20_000


def check_tab_order(page, needed):
    """Every control is reached by Tab, shows that it has the focus, and comes in the order of the page."""
    names = []
    for _ in range(120):
        page.keyboard.press("Tab")
        stop = page.evaluate("document.activeElement.closest('[id]')?.id")
        if stop is None or (stop == "skip" and names):
            break
        assert page.evaluate(RINGED), stop
        names.append(stop)
    positions = [names.index(name) for name in needed]
    assert positions == sorted(positions)
    return names


def check_screen_reader(page):
    """Tables have captions, sortable headers say how they are sorted, controls and pictures have names."""
    for table in page.locator("table").all():
        assert table.locator("caption").text_content()
    for header in page.locator("th:has(button)").all():
        assert header.get_attribute("aria-sort") in ("none", "ascending", "descending")
    assert page.evaluate(NAMELESS) == 0


def link(page):
    """The page's own address, once it has followed the last change."""
    page.wait_for_timeout(300)
    return page.evaluate("location.hash")


def column(page, table, index):
    return [text.strip() for text in page.locator(f"{table} tbody td:nth-child({index})").all_inner_texts()]


def head(page, table, name):
    return page.locator(f"{table} thead button", has_text=name)
