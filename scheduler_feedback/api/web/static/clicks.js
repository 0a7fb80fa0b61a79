// Keep the last click on a button until page.js, which handles it, has run: on a slow connection or machine a reader sees
// and clicks the buttons earlier. page.js clicks the button again.
"use strict";
{
  let clicked = null;
  const keep = (event) => {
    clicked = event.target.closest?.("button[type=button]") ?? clicked;
  };
  document.addEventListener("click", keep);
  document.addEventListener("ready-for-clicks", () => {
    document.removeEventListener("click", keep);
    if (clicked?.isConnected) clicked.click();
  });
}
