"""The JavaScript of a page: tables to sort and filter, pictures to save and play. No library."""

SCRIPT = r"""
(function () {
  "use strict";
  function save(name, type, text) {
    var link = document.createElement("a");
    var blob = typeof text === "string" ? new Blob([text], {type: type}) : text;
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 1000);
  }
  function alone(svg) {
    var copy = svg.cloneNode(true), box = svg.viewBox.baseVal;
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    return new XMLSerializer().serializeToString(copy);
  }
  function png(name, svg) {
    var box = svg.viewBox.baseVal, image = new Image();
    image.onload = function () {
      var canvas = document.createElement("canvas");
      canvas.width = 2 * box.width; canvas.height = 2 * box.height;
      var pen = canvas.getContext("2d");
      pen.fillStyle = "#ffffff"; pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(function (blob) { save(name, "image/png", blob); });
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(alone(svg));
  }
  document.querySelectorAll("figure[data-name]").forEach(function (figure) {
    var name = figure.dataset.name, svg = figure.querySelector("svg");
    var data = figure.querySelector("script[type='text/csv']");
    figure.querySelectorAll("button[data-save]").forEach(function (button) {
      button.addEventListener("click", function () {
        var kind = button.dataset.save;
        if (kind === "svg") save(name + ".svg", "image/svg+xml", alone(svg));
        if (kind === "png") png(name + ".png", svg);
        if (kind === "csv") save(name + ".csv", "text/csv", JSON.parse(data.textContent));
      });
    });
    var drawing = figure.querySelector(".drawing"), enlarge = figure.querySelector(".enlarge");
    enlarge.addEventListener("click", function () {
      var large = drawing.classList.toggle("large");
      enlarge.setAttribute("aria-pressed", large);
      enlarge.textContent = large ? "Fit" : "Enlarge";
      if (large) drawing.setAttribute("tabindex", "0"); else drawing.removeAttribute("tabindex");
    });
    var moving = figure.querySelector("script[type='application/json']");
    if (!moving) return;
    var film = JSON.parse(moving.textContent), raw = atob(film.levels);
    var nodes = svg.querySelectorAll(".nodes circle"), n = nodes.length, count = film.labels.length;
    var slider = figure.querySelector("input[type=range]"), spoken = figure.querySelector("output");
    var button = figure.querySelector("button.play"), timer = null;
    function show(k) {
      for (var i = 0; i < n; i++)
        nodes[i].setAttribute("fill", film.colours[raw.charCodeAt(k * n + i)]);
      spoken.textContent = film.labels[k];
      slider.setAttribute("aria-valuetext", film.labels[k]);
    }
    function stop() { clearInterval(timer); timer = null; button.textContent = "Play"; }
    slider.addEventListener("input", function () { stop(); show(+slider.value); });
    button.addEventListener("click", function () {
      if (timer) return stop();
      if (+slider.value >= count - 1) slider.value = 0;
      button.textContent = "Pause";
      timer = setInterval(function () {
        if (+slider.value >= count - 1) return stop();
        slider.value = +slider.value + 1; show(+slider.value);
      }, 300);
    });
    show(0);
  });
  document.querySelectorAll("table.sortable").forEach(function (table) {
    var body = table.tBodies[0];
    table.querySelectorAll("thead button").forEach(function (button, column) {
      button.addEventListener("click", function () {
        var head = button.parentNode, up = head.getAttribute("aria-sort") !== "ascending";
        table.querySelectorAll("thead th").forEach(function (other) {
          other.removeAttribute("aria-sort");
        });
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        var rows = Array.from(body.rows);
        rows.sort(function (a, b) {
          var x = a.cells[column].textContent, y = b.cells[column].textContent;
          var p = parseFloat(x), q = parseFloat(y);
          var order = isNaN(p) || isNaN(q) ? x.localeCompare(y) : p - q;
          return up ? order : -order;
        });
        rows.forEach(function (row) { body.appendChild(row); });
      });
    });
    var filter = table.parentNode.parentNode.querySelector("input[type=search]");
    if (filter) filter.addEventListener("input", function () {
      var wanted = filter.value.toLowerCase();
      Array.from(body.rows).forEach(function (row) {
        row.hidden = row.textContent.toLowerCase().indexOf(wanted) < 0;
      });
    });
  });
  document.querySelectorAll("button[data-copy]").forEach(function (button) {
    button.addEventListener("click", function () {
      var text = document.getElementById(button.dataset.copy).textContent;
      if (navigator.clipboard) navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    });
  });
})();
"""
