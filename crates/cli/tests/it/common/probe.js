// What a browser makes of a report: written into the page as JSON, for --dump-dom to bring out.
(() => {
  const box = (r) => [r.left + scrollX, r.top + scrollY, r.width, r.height];
  const out = { inner: innerWidth, scroll: document.documentElement.scrollWidth, height: 0, resources: [], charts: [], overlaps: [],
    outside: [], wide: [], crossed: [], squeezed: [], scrolled: [], text: '', figures: [], elements: {}, dark: matchMedia('(prefers-color-scheme: dark)').matches };
  out.resources = performance.getEntriesByType('resource').map((e) => e.name);
  out.height = document.documentElement.scrollHeight;
  for (const svg of document.querySelectorAll('svg.chart')) {
    const frame = svg.getBoundingClientRect();
    const labelled = (svg.getAttribute('aria-labelledby') || '').split(' ').map((id) => document.getElementById(id)?.textContent || '');
    out.charts.push({ id: svg.closest('figure').id, box: box(frame), title: labelled[0], desc: labelled[1] || '' });
    const texts = [...svg.querySelectorAll('text')].map((t) => ({ text: t.firstChild?.textContent || '', r: t.getBoundingClientRect() }));
    texts.forEach((a, i) => {
      if (a.r.left < frame.left - 1 || a.r.right > frame.right + 1 || a.r.top < frame.top - 1 || a.r.bottom > frame.bottom + 1) {
        out.outside.push(`${a.text} of ${svg.closest('figure').id}`);
      }
      for (const b of texts.slice(i + 1)) {
        const x = Math.min(a.r.right, b.r.right) - Math.max(a.r.left, b.r.left);
        const y = Math.min(a.r.bottom, b.r.bottom) - Math.max(a.r.top, b.r.top);
        // Boxes of text have room above and below the letters.
        if (x > 0.5 && y > 4) out.overlaps.push(`${a.text} | ${b.text} of ${svg.closest('figure').id}`);
      }
    });
    out.figures.push(...[...svg.querySelectorAll('text.figure')].map((t) => t.textContent));
  }
  for (const e of document.querySelectorAll('*')) out.elements[e.localName] = (out.elements[e.localName] || 0) + 1;
  document.querySelectorAll('details').forEach((d) => { d.open = true; });
  for (const e of document.body.querySelectorAll('*')) {
    if (e.closest('svg') || getComputedStyle(e).display === 'inline' || e.clientWidth === 0) continue;
    if (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === 'visible') out.wide.push(e.outerHTML.slice(0, 120));
  }
  for (const e of document.querySelectorAll('.scroll')) {
    if (e.querySelector('table') && e.scrollWidth > e.clientWidth + 1) out.scrolled.push(`${e.scrollWidth} in ${e.clientWidth}: ${e.innerText.slice(0, 120)}`);
  }
  for (const e of document.querySelectorAll('th, td')) {
    const words = Math.max(...e.textContent.split(/\s+/).map((w) => w.length));
    if (e.getClientRects().length && words < 20 && e.clientWidth < 5 * words) out.squeezed.push(e.textContent);
  }
  const parts = [...document.querySelectorAll('main > *, main > section > *')].map((e) => ({ e, r: e.getBoundingClientRect() }));
  parts.forEach((a, i) => {
    const b = parts[i + 1];
    if (b && a.e.parentNode === b.e.parentNode && b.r.top < a.r.bottom - 1) out.crossed.push(b.e.outerHTML.slice(0, 120));
  });
  out.scrollOpen = document.documentElement.scrollWidth;
  // Ticks of axes are no data.
  document.querySelectorAll('svg').forEach((s) => { s.style.display = 'none'; });
  out.text = document.body.innerText;
  const pre = document.createElement('pre');
  pre.id = 'mqblk-probe';
  pre.textContent = encodeURIComponent(JSON.stringify(out));
  document.body.append(pre);
})();
