// Run from the repository's root (see package.json), so that the page's files are under the base path.
import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    files: ["src/vitreous/serving/page/**/*.js"],
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: { ...globals.browser } },
    rules: {
      "eqeqeq": "error",
      "no-var": "error",
      "prefer-const": "error",
      "no-implicit-globals": "error",
      "no-shadow": "error",
      "no-param-reassign": "error",
      "no-unused-vars": ["error", { caughtErrors: "none" }],
      // The page's content security policy forbids these: report them before the browser does.
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-restricted-properties": ["error",
        { property: "innerHTML", message: "Build elements with `make` (dom.js): text stays text." },
        { property: "outerHTML", message: "Build elements with `make` (dom.js): text stays text." },
      ],
      "no-console": "error",
    },
  },
  {
    files: ["**/*.mjs"],
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: { ...globals.node } },
  },
];
