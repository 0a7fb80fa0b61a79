// Before anything is painted: the theme that was chosen here, if one was.
"use strict";
{
  let theme = null;
  try {
    theme = localStorage.getItem("theme");
  } catch {
    // A browser that keeps nothing: the system's theme it is.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
