// Browsers forbid the search index to pages opened from disk, and the theme hides its box: say why.
if (location.protocol === "file:") {
  document.addEventListener("DOMContentLoaded", function () {
    var header = document.querySelector(".md-header__inner");
    if (!header) return;
    var note = document.createElement("small");
    note.className = "search-needs-server";
    note.textContent = "Search needs a server: mkdocs serve";
    header.appendChild(note);
  });
}
