/** Pictures searched with, kept in this browser by hash: an address outlives the server's memory of them. */

const NAME = "auxbit";
const STORE = "uploads";
const MOST = 50;

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

let opened = null;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(STORE, { keyPath: "hash" }).createIndex("at", "at");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

/** Keep a file; the oldest beyond 50 go. Where the browser keeps nothing, nothing is kept. */
export async function keep(hash, file, name) {
  try {
    const store = (await database()).transaction(STORE, "readwrite").objectStore(STORE);
    await done(store.put({ hash, name, file, at: Date.now() }));
    const keys = await done(store.index("at").getAllKeys());
    for (const key of keys.slice(0, Math.max(0, keys.length - MOST))) store.delete(key);
  } catch (error) {
    console.info("The picture is not kept in this browser:", error?.message ?? error);
  }
}

/** @returns {Promise<{file: Blob, name: string}|null>} */
export async function kept(hash) {
  try {
    const store = (await database()).transaction(STORE).objectStore(STORE);
    return (await done(store.get(hash))) ?? null;
  } catch {
    return null;
  }
}
