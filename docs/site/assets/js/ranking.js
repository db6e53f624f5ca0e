// Ranks pages and their sections: the title of a page counts most, then a heading, then a cell or paragraph that is what
// is searched, such as a field or a reason, then one that begins with it.
const found = (index, query, tag) => index.search(query, 100, { enrich: true, suggest: true, tag })[0]?.result || [];

function weight({ doc }, query) {
  const text = doc.content.toLowerCase();
  return doc.display !== undefined ? 10 : text === query ? 9 : text.startsWith(query) ? 3 : 0.1;
}

function rankSections(query, page) {
  const q = query.trim().toLowerCase();
  return found(window.sectionIndex, q, `page_${page}`).sort((a, b) => weight(b, q) - weight(a, q));
}

function rankPages(query) {
  const q = query.trim().toLowerCase();
  const score = ({ id, doc }) => {
    const title = doc.title.toLowerCase();
    const ofTitle = title === q ? 1000 : title.startsWith(q) ? 500 : title.includes(` ${q}`) ? 200 : 0;
    return rankSections(q, id).reduce((sum, section) => sum + weight(section, q), ofTitle);
  };
  return found(window.pageIndex, q).map(page => [page, score(page)]).sort((a, b) => b[1] - a[1]).map(([page]) => page);
}
