/// <reference types="vitest/config" />
import { defineConfig } from "vite";

// The file names carry no hash: the proxy serves them with an ETag, and a rebuild changes as few files as possible.
export default defineConfig({
  base: "/static/",
  build: {
    outDir: process.env.PAGE_OUT ?? "../proxy/slipstream_proxy/control/page",
    emptyOutDir: false,
    assetsDir: "",
    modulePreload: false,
    cssCodeSplit: false,
    target: "es2022",
    rolldownOptions: {
      output: { entryFileNames: "page.js", assetFileNames: "page[extname]", codeSplitting: false },
    },
  },
  server: { proxy: { "/slipstream": "http://127.0.0.1:8100" } },
  test: { include: ["src/**/*.test.ts"], environment: "node" },
});
