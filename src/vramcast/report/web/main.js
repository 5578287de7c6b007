// Puts the pictures into their places; light, dark and the system's theme.

/** Gives back the section of memory, which can show another course. */
function drawResult(article, result, ceiling = 0) {
  let memory = null;
  if (result.course) {
    const course = new Course(result.course);
    memory = memorySection(article.querySelector(".memory"), course, ceiling);
    const segments = article.querySelector(".segments");
    if (segments) segmentsSection(segments, course);
  }
  const lanes = article.querySelector(".lanes");
  if (lanes && result.lanes) lanesSection(lanes, result.lanes);
  return memory;
}

const themes = [["", t("system theme")], ["light", t("light")], ["dark", t("dark")]];
const themeButton = document.querySelector("button.theme");
function setTheme(place) {
  if (themes[place][0]) document.documentElement.dataset.theme = themes[place][0];
  else delete document.documentElement.dataset.theme;
  if (themeButton) Object.assign(themeButton, { textContent: themes[place][1] }).dataset.place = place;
  document.dispatchEvent(new Event("themechange"));
}
if (themeButton) {
  themeButton.addEventListener("click", () => setTheme((Number(themeButton.dataset.place || 0) + 1) % themes.length));
  setTheme(0);
}

// Paper is white, whatever the screen is.
addEventListener("beforeprint", () => {
  document.documentElement.dataset.theme = "light";
  document.dispatchEvent(new Event("themechange"));
});
addEventListener("afterprint", () => setTheme(Number(themeButton?.dataset.place || 0)));

/** The highest level of all results, so that their charts have one scale. */
function commonCeiling(results) {
  const tops = results.filter((one) => one.course).map((one) => Math.max(one.course.limit, Math.max(...one.course.points.reserved) + one.course.context));
  return tops.length > 1 ? Math.max(...tops) * 1.04 : 0;
}
if (data.results) {
  const ceiling = commonCeiling(data.results);
  document.querySelectorAll("article[data-result]").forEach((article) => drawResult(article, data.results[article.dataset.result], ceiling));
}
