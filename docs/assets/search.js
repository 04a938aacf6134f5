// Browsers forbid the search index to pages opened from disk: say so, rather than wait for ever.
if (location.protocol === "file:") {
  document.addEventListener("DOMContentLoaded", function () {
    var box = document.querySelector(".md-search__input");
    if (!box) return;
    box.placeholder = "Search needs a server: run mkdocs serve";
    box.disabled = true;
    box.title = "Opened from disk, a browser may not read the search index. Run mkdocs serve.";
  });
}
