// Files that a viewer gives to the page or gets from it.

/** Call `take` with each file that is dropped on `target`, chosen in `input`, or pasted. */
export function onFile(target, input, take) {
  const takeFirst = ([file]) => file && take(file);
  for (const kind of ["dragenter", "dragover"]) {
    target.addEventListener(kind, (event) => {
      event.preventDefault();
      target.classList.add("over");
    });
  }
  for (const kind of ["dragleave", "drop"]) target.addEventListener(kind, () => target.classList.remove("over"));
  target.addEventListener("drop", (event) => {
    event.preventDefault();
    takeFirst(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => takeFirst([...(event.clipboardData?.files ?? [])].filter((one) => one.type.startsWith("image/"))));
  input.onchange = () => {
    takeFirst(input.files);
    input.value = "";
  };
}

export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
