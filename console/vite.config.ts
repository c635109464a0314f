import { defineConfig } from "vite";

// The files are committed: what is built depends on nothing but the sources and the lock file.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/topics/api/console/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    sourcemap: false,
    chunkSizeWarningLimit: 1000,
  },
});
