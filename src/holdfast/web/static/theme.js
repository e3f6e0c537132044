// Before the first paint: the theme that was chosen here. Without a choice the system's is used.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("holdfast-theme"); } catch { /* storage may be off */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
