"""Draw a run's picture, tiles and answers over a pose, in a window of OpenGL. Start a run, then this program:

python run_stream.py watch 0 --share-texture ar.sock

It needs OpenGL 3.3 and freeglut (Debian: apt install freeglut3-dev). docs/ar.md has the lines of a pose.
"""

import argparse
import json
import sys
import threading
from contextlib import closing

import numpy as np
from OpenGL import GL
from PIL import Image, ImageDraw, ImageFont

from arr_coc.texture.packing import cover
from arr_coc.texture.regions import region_mean, tile_boxes
from arr_coc.types import TILE_PX
from stream.errors import StreamError
from stream.extensions.shared_texture.reader import SharedTexture

LIFT = 0.15
"""Height of the most relevant tile above the picture, whose width is 1."""

VERTEX = """#version 330
uniform mat4 camera;
uniform vec4 box;      // left, top, right, bottom, in [0, 1] of the picture
uniform float height;
uniform float aspect;  // height of the plane, whose width is 1
out vec2 place;
out vec2 corner;
void main() {
    corner = vec2(gl_VertexID & 1, gl_VertexID >> 1);
    place = mix(box.xy, box.zw, corner);
    gl_Position = camera * vec4(place.x - 0.5, (0.5 - place.y) * aspect, height, 1.0);
}
"""

FRAGMENT = """#version 330
uniform sampler2D picture;
uniform vec2 used;    // share of the texture that the picture fills
uniform float light;
uniform vec4 border;  // colour, and width in pixels
in vec2 place;
in vec2 corner;
out vec4 colour;
void main() {
    vec2 inside = min(corner, 1.0 - corner) / max(fwidth(corner), vec2(1e-6));
    vec4 texel = texture(picture, place * used);
    colour = min(inside.x, inside.y) < border.w ? vec4(border.rgb, 1.0) : vec4(texel.rgb * light, texel.a);
}
"""


class Pose:
    """The eye and the labels, from JSON lines; a thread reads them, and the newest values count."""

    def __init__(self):
        self.eye = np.eye(4)  # eye to world
        self.eye[:3, 3] = 0.0, 0.0, 1.1
        self.fov_deg = 50.0
        self.labels = [{"text": "{answer}", "at": [0.0, -0.36, 0.0]}]
        self.changed = threading.Event()

    def take(self, line):
        """Take the values of one line. Raises ValueError if they are none."""
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError("a pose is an object")
        eye = self.eye
        if "matrix" in values:
            eye = np.array(values["matrix"], float).reshape(4, 4)
        elif "position" in values:
            eye = np.eye(4)
            eye[:3, :3] = rotation(*np.array(values.get("orientation", [0, 0, 0, 1]), float).reshape(4))
            eye[:3, 3] = np.array(values["position"], float).reshape(3)
        if not np.isfinite(eye).all() or abs(np.linalg.det(eye)) < 1e-9:
            raise ValueError("the matrix of the eye has no inverse")
        fov_deg = float(values.get("fov_deg", self.fov_deg))
        if not 1 <= fov_deg <= 170:
            raise ValueError("fov_deg is from 1 to 170")
        labels = values.get("labels", self.labels)
        labels = [{"text": str(label["text"]), "at": [float(part) for part in label["at"]]} for label in labels]
        if any(len(label["at"]) != 3 for label in labels):
            raise ValueError("a label is anchored at [x, y, z]")
        self.eye = eye
        self.fov_deg = fov_deg
        self.labels = labels
        self.changed.set()

    def read(self, lines):
        """Take each line, and report those that are no pose."""
        for line in lines:
            try:
                self.take(line)
            except (ValueError, TypeError, KeyError) as error:
                print(f"ar_viewer: no pose: {line.strip()[:60]} ({error}); see docs/ar.md", file=sys.stderr)

    def camera(self, width, height):
        """World to clip space of a window, float [4, 4]."""
        near, far = 0.01, 100.0
        focal = 1 / np.tan(np.radians(self.fov_deg) / 2)
        lens = np.zeros((4, 4))
        lens[0, 0] = focal * height / width
        lens[1, 1] = focal
        lens[2, 2:] = (far + near) / (near - far), 2 * far * near / (near - far)
        lens[3, 2] = -1
        return lens @ np.linalg.inv(self.eye)


def rotation(x, y, z, w):
    """Matrix [3, 3] of a quaternion of any length but 0."""
    length = np.sqrt(x * x + y * y + z * z + w * w)
    if not length > 0:
        raise ValueError("the orientation is 0")
    x, y, z, w = np.array([x, y, z, w]) / length
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def text_picture(text, width):
    """A text of lines that fit a width, on a dark ground: uint8 [height, width, 4]."""
    font = ImageFont.load_default(18)
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= width - 16:
            lines[-1] = longer
        else:
            lines.append(word)
    box_px = (min(width, 16 + int(max(font.getlength(line) for line in lines))), 12 + 22 * len(lines))
    picture = Image.new("RGBA", box_px, (10, 12, 20, 200))
    ImageDraw.Draw(picture).multiline_text((8, 4), "\n".join(lines), (255, 255, 255, 255), font)
    return np.array(picture)


class Scene:
    """What is drawn, in the context of OpenGL that is current."""

    def __init__(self):
        self.program = linked_program()
        GL.glBindVertexArray(GL.glGenVertexArrays(1))  # corners are made by the shader
        self.picture = GL.glGenTextures(1)
        self.text = GL.glGenTextures(1)
        self.frame = None
        self.texts = {}
        self.shape = None

    def upload(self, frame):
        """Take a frame: the tiles that changed go into the texture."""
        self.frame = frame
        height, width, _ = frame.pixels.shape
        GL.glBindTexture(GL.GL_TEXTURE_2D, self.picture)
        GL.glPixelStorei(GL.GL_UNPACK_ALIGNMENT, 1)
        changed = frame.changed
        if self.shape != (height, width):
            self.shape = height, width
            changed = np.ones_like(changed)
            filters(GL.GL_LINEAR_MIPMAP_LINEAR)
            GL.glTexImage2D(GL.GL_TEXTURE_2D, 0, GL.GL_RGB8, width, height, 0, GL.GL_RGB, GL.GL_UNSIGNED_BYTE, None)
        for top, left, bottom, right in np.array(cover(changed), int).reshape(-1, 4) * TILE_PX:
            part = np.ascontiguousarray(frame.pixels[top:bottom, left:right])
            box = (left, top, right - left, bottom - top)
            GL.glTexSubImage2D(GL.GL_TEXTURE_2D, 0, *box, GL.GL_RGB, GL.GL_UNSIGNED_BYTE, part)
        GL.glGenerateMipmap(GL.GL_TEXTURE_2D)

    def draw(self, size, pose, answer):
        """Draw the newest frame and the labels over a pose, into a window of (width, height)."""
        GL.glViewport(0, 0, *size)
        GL.glClearColor(0.05, 0.06, 0.09, 1)
        GL.glClear(GL.GL_COLOR_BUFFER_BIT | GL.GL_DEPTH_BUFFER_BIT)
        if self.frame is None:
            return
        GL.glUseProgram(self.program)
        GL.glBlendFunc(GL.GL_SRC_ALPHA, GL.GL_ONE_MINUS_SRC_ALPHA)
        camera = pose.camera(*size)
        GL.glEnable(GL.GL_DEPTH_TEST)
        self.draw_picture(camera)
        GL.glDisable(GL.GL_DEPTH_TEST)
        GL.glEnable(GL.GL_BLEND)
        for label in pose.labels:
            self.draw_label(label["text"].replace("{answer}", answer), camera @ [*label["at"], 1.0], size)
        GL.glDisable(GL.GL_BLEND)

    def draw_picture(self, camera):
        """Draw the picture as a plane, and above it the tiles that the model is shown, the higher the more relevant."""
        grid = self.frame.grid
        GL.glBindTexture(GL.GL_TEXTURE_2D, self.picture)
        self.uniform("used", grid.width_px / grid.padded_width_px, grid.height_px / grid.padded_height_px)
        self.uniform("aspect", grid.height_px / grid.width_px)
        GL.glUniformMatrix4fv(self.place("camera"), 1, True, camera.astype(np.float32))
        self.quad((0, 0, 1, 1), light=0.45)
        regions = self.frame.regions[self.frame.overview :].astype(np.int64)
        relevance = region_mean(regions, self.frame.relevance.astype(np.float32) / 255)
        lifts = relevance / max(float(relevance.max(initial=0)), 1e-6)
        boxes = tile_boxes(regions, grid.shape) * TILE_PX
        for (top, left, bottom, right), lift in zip(boxes.tolist(), lifts.tolist(), strict=True):
            box = (left / grid.width_px, top / grid.height_px, right / grid.width_px, bottom / grid.height_px)
            self.quad(np.minimum(box, 1), LIFT * (0.02 + lift), border=(1.0, 0.45 + 0.5 * lift, 0.1, 1.5))

    def draw_label(self, text, clip, size):
        """Draw a text whose upper edge has its middle at a point of clip space, if that is before the eye."""
        if clip[3] <= 0 or not text:
            return
        if text not in self.texts:
            self.texts = {**dict(list(self.texts.items())[-8:]), text: text_picture(text, size[0] * 3 // 4)}
        picture = self.texts[text]
        height, width, _ = picture.shape
        GL.glBindTexture(GL.GL_TEXTURE_2D, self.text)
        filters(GL.GL_LINEAR)
        GL.glTexImage2D(GL.GL_TEXTURE_2D, 0, GL.GL_RGBA8, width, height, 0, GL.GL_RGBA, GL.GL_UNSIGNED_BYTE, picture)
        place = np.diag([2 * width / size[0], 2 * height / size[1], 1.0, 1.0])
        place[:2, 3] = clip[:2] / clip[3] - [0, height / size[1]]
        GL.glUniformMatrix4fv(self.place("camera"), 1, True, place.astype(np.float32))
        self.uniform("used", 1.0, 1.0)
        self.uniform("aspect", 1.0)
        self.quad((0, 0, 1, 1))

    def quad(self, box, height=0.0, light=1.0, border=(0.0, 0.0, 0.0, 0.0)):
        self.uniform("box", *box)
        self.uniform("height", height)
        self.uniform("light", light)
        self.uniform("border", *border)
        GL.glDrawArrays(GL.GL_TRIANGLE_STRIP, 0, 4)

    def uniform(self, name, *values):
        (GL.glUniform1f, GL.glUniform2f, None, GL.glUniform4f)[len(values) - 1](self.place(name), *values)

    def place(self, name):
        return GL.glGetUniformLocation(self.program, name)


def linked_program():
    program = GL.glCreateProgram()
    for kind, source in ((GL.GL_VERTEX_SHADER, VERTEX), (GL.GL_FRAGMENT_SHADER, FRAGMENT)):
        shader = GL.glCreateShader(kind)
        GL.glShaderSource(shader, [source])
        GL.glCompileShader(shader)
        GL.glAttachShader(program, shader)
    GL.glLinkProgram(program)
    if not GL.glGetProgramiv(program, GL.GL_LINK_STATUS):
        raise SystemExit(f"ar_viewer: OpenGL 3.3 is needed: {GL.glGetProgramInfoLog(program)!r}")
    return program


def filters(smaller):
    """Set how the texture that is bound is read."""
    for name, value in (
        (GL.GL_TEXTURE_MIN_FILTER, smaller),
        (GL.GL_TEXTURE_MAG_FILTER, GL.GL_LINEAR),
        (GL.GL_TEXTURE_WRAP_S, GL.GL_CLAMP_TO_EDGE),
        (GL.GL_TEXTURE_WRAP_T, GL.GL_CLAMP_TO_EDGE),
    ):
        GL.glTexParameteri(GL.GL_TEXTURE_2D, name, value)


def read_pixels(size):
    """What was drawn: uint8 [height, width, 3]."""
    GL.glPixelStorei(GL.GL_PACK_ALIGNMENT, 1)
    data = GL.glReadPixels(0, 0, *size, GL.GL_RGB, GL.GL_UNSIGNED_BYTE)
    return np.frombuffer(data, np.uint8).reshape(size[1], size[0], 3)[::-1]


class Window:
    """A window with a context of OpenGL 3.3."""

    def __init__(self, size, title):
        from OpenGL import GLUT

        self.glut = GLUT
        if not GLUT.glutInit:
            raise SystemExit("ar_viewer: a window needs freeglut (Debian: apt install freeglut3-dev)")
        GLUT.glutInit()
        GLUT.glutInitContextVersion(3, 3)
        GLUT.glutInitContextProfile(GLUT.GLUT_CORE_PROFILE)
        GLUT.glutInitDisplayMode(GLUT.GLUT_DOUBLE | GLUT.GLUT_RGBA | GLUT.GLUT_DEPTH)
        GLUT.glutInitWindowSize(*size)
        self.number = GLUT.glutCreateWindow(title.encode())
        GLUT.glutSetOption(GLUT.GLUT_ACTION_ON_WINDOW_CLOSE, GLUT.GLUT_ACTION_CONTINUE_EXECUTION)
        GLUT.glutDisplayFunc(lambda: None)
        GLUT.glutCloseFunc(self.on_close)
        self.closed = False

    def on_close(self):
        self.closed = True

    def close(self):
        """Close the window now: freeglut would call functions of this program after its end."""
        if not self.closed:
            self.glut.glutCloseFunc(None)
            self.glut.glutDestroyWindow(self.number)
            self.glut.glutMainLoopEvent()

    @property
    def size(self):
        return self.glut.glutGet(self.glut.GLUT_WINDOW_WIDTH), self.glut.glutGet(self.glut.GLUT_WINDOW_HEIGHT)


def show(options):
    """Show a run until it ends, or the window is closed."""
    pose = Pose()
    if options.pose is not None:
        threading.Thread(target=pose.read, args=(options.pose,), daemon=True).start()
    frames = 0
    with SharedTexture.connect(options.socket) as texture, closing(Window(options.size, "ARR-COC Stream")) as window:
        scene = Scene()
        while not (window.closed or texture.ended or frames == options.frames):
            frame = texture.update(timeout_s=0.05)
            if frame is not None:
                scene.upload(frame)
                frames += 1
            if frame is not None or pose.changed.is_set():
                pose.changed.clear()
                scene.draw(window.size, pose, "" if texture.answer is None else texture.answer.text)
                if options.picture and frame is not None:
                    Image.fromarray(read_pixels(window.size)).save(options.picture)
                window.glut.glutSwapBuffers()
            window.glut.glutMainLoopEvent()
        print(f"{frames} frames; {'the run has ended' if texture.ended else 'closed'}")


def pixels(text):
    width, height = map(int, text.split("x"))
    return width, height


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("socket", help="that of --share-texture")
    parser.add_argument("--pose", type=argparse.FileType("r"), help="file, FIFO or - (standard input) of JSON lines")
    parser.add_argument("--size", type=pixels, default=(960, 600), metavar="WxH")
    parser.add_argument("--frames", type=int, help="end after this many")
    parser.add_argument("--picture", help="also write what is drawn to this file, each frame")
    try:
        show(parser.parse_args())
    except StreamError as error:
        raise SystemExit(f"ar_viewer: {error}") from error
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
