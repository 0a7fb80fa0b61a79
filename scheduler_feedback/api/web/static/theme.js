// Apply the stored theme before the page is drawn.
"use strict";
{
  let theme = null;
  try {
    theme = localStorage.getItem("theme");
  } catch {
    // No storage: use the system's theme.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
