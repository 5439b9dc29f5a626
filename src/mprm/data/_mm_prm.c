/* One v1.1-Raw line as an MM-PRM training record with hard labels: the compiled twin of
 * mm_prm.dump_hard, to the byte. A line that is not plainly right is left to Python.
 */
#include "_json_cursor.h"

enum { MAX_STEPS = 512 };

typedef struct {
    const unsigned char *start, *end; /* inside the quotes */
} Slice;

typedef struct {
    unsigned char *start, *p;
} Out;

static inline void put(Out *out, const char *text, size_t length) {
    memcpy(out->p, text, length);
    out->p += length;
}
#define PUT(out, literal) put(out, literal, sizeof(literal) - 1)

static int slice(Cursor *c, Slice *found, uint32_t *n_words) {
    Text text;
    skip_space(c);
    found->start = c->p + 1;
    NEED(string(c, 1, &text));
    found->end = found->start + text.n_bytes;
    *n_words = text.n_words;
    return 1;
}

/* A string, or null for none. */
static int optional_slice(Cursor *c, Slice *found, uint32_t *n_words) {
    skip_space(c);
    if (c->p < c->end && *c->p == 'n') {
        *n_words = 0;
        return word(c, "null", 4);
    }
    return slice(c, found, n_words);
}

static void put_point(Out *out, uint32_t point) {
    static const char HEX[] = "0123456789abcdef";
    if (point == '"') PUT(out, "\\\"");
    else if (point == '\\') PUT(out, "\\\\");
    else if (point == 8) PUT(out, "\\b");
    else if (point == 9) PUT(out, "\\t");
    else if (point == 10) PUT(out, "\\n");
    else if (point == 12) PUT(out, "\\f");
    else if (point == 13) PUT(out, "\\r");
    else if (point < 0x20) {
        PUT(out, "\\u00");
        *out->p++ = (unsigned char)HEX[point >> 4];
        *out->p++ = (unsigned char)HEX[point & 15];
    } else if (point < 0x80) *out->p++ = (unsigned char)point;
    else if (point < 0x800) {
        *out->p++ = (unsigned char)(0xC0 | point >> 6);
        *out->p++ = (unsigned char)(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
        *out->p++ = (unsigned char)(0xE0 | point >> 12);
        *out->p++ = (unsigned char)(0x80 | (point >> 6 & 0x3F));
        *out->p++ = (unsigned char)(0x80 | (point & 0x3F));
    } else {
        *out->p++ = (unsigned char)(0xF0 | point >> 18);
        *out->p++ = (unsigned char)(0x80 | (point >> 12 & 0x3F));
        *out->p++ = (unsigned char)(0x80 | (point >> 6 & 0x3F));
        *out->p++ = (unsigned char)(0x80 | (point & 0x3F));
    }
}

/* End of the bytes from p on that stand for themselves: plain letters and spaces. */
static const unsigned char *end_of_run(const unsigned char *p, const unsigned char *end) {
#if defined(__SSE2__)
    for (; end - p >= 16; p += 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)p);
        unsigned stop = (unsigned)_mm_movemask_epi8(_mm_or_si128(x, _mm_cmpeq_epi8(x, _mm_set1_epi8('\\'))));
        if (stop) return p + __builtin_ctz(stop);
    }
#endif
    while (p < end && *p != '\\' && *p < 0x80) p++;
    return p;
}

/* The text again, escaped as msgspec escapes and stripped as str.strip does; it was walked before, so
 * it is right. Never longer than it was: every escape is as short as any other way to write it. */
static void put_text(Out *out, Slice text, int strip) {
    Cursor c = {text.start, text.end, 0};
    unsigned char *begin = out->p, *last = out->p; /* end of the last letter that is no space */
    while (c.p < c.end) {
        const unsigned char *run = c.p;
        while (strip && out->p == begin && run < c.end && *run == ' ') run++;
        c.p = end_of_run(run, c.end);
        if (c.p > run) {
            unsigned char *first = out->p, *letter; /* of the run alone: before it may stand other white space */
            put(out, (const char *)run, (size_t)(c.p - run));
            for (letter = out->p; letter > first && letter[-1] == ' '; letter--) continue;
            if (letter > first) last = letter;
            continue;
        }
        if (c.p == c.end) break;
        uint32_t point = *c.p;
        if (*c.p == '\\') {
            c.p++;
            (void)escape(&c, &point);
        } else if (*c.p >= 0x80) (void)wide(&c, &point);
        else c.p++;
        int space = Py_UNICODE_ISSPACE((Py_UCS4)point);
        if (space && strip && out->p == begin) continue;
        put_point(out, point);
        if (!space) last = out->p;
    }
    if (strip) out->p = last;
}

typedef struct {
    Slice image, question, original, steps[MAX_STEPS];
    unsigned char is_positive[MAX_STEPS];
    int n_steps;
    uint32_t question_words, original_words;
} Rollout;

static int step(Cursor *c, double tau, Rollout *rollout) {
    enum { STEP = 1, SCORE = 2 };
    int seen = 0, next = 1;
    double s = 0;
    uint32_t n_words = 0;
    NEED(take(c, '{') && rollout->n_steps < MAX_STEPS);
    while (next == 1) {
        const unsigned char *name;
        Py_ssize_t length;
        NEED(key(c, &name, &length));
        int field = IS(name, length, "step") ? STEP : IS(name, length, "score") ? SCORE : 0;
        NEED(!(seen & field));
        seen |= field;
        if (field == STEP) NEED(slice(c, &rollout->steps[rollout->n_steps], &n_words) && n_words);
        else if (field == SCORE) NEED(score(c, &s));
        else NEED(any_value(c, 0));
        next = more(c, '}');
    }
    rollout->is_positive[rollout->n_steps++] = s > tau;
    return next == 0 && seen == (STEP | SCORE);
}

static int record(Cursor *c, double tau, Rollout *rollout) {
    enum { STEPS = 1, QUESTION = 2, ORIGINAL = 4, IMAGE = 8 };
    int seen = 0, next = 1;
    uint32_t n_words;
    NEED(take(c, '{'));
    while (next == 1) {
        const unsigned char *name;
        Py_ssize_t length;
        NEED(key(c, &name, &length));
        int field = IS(name, length, "steps_with_score") ? STEPS : IS(name, length, "question") ? QUESTION
                  : IS(name, length, "question_orig") ? ORIGINAL : IS(name, length, "image") ? IMAGE : 0;
        NEED(!(seen & field));
        seen |= field;
        if (field == STEPS) {
            int more_steps = 1;
            NEED(take(c, '['));
            while (more_steps == 1) {
                NEED(step(c, tau, rollout));
                more_steps = more(c, ']');
            }
            NEED(more_steps == 0);
        } else if (field == QUESTION) NEED(optional_slice(c, &rollout->question, &rollout->question_words));
        else if (field == ORIGINAL) NEED(optional_slice(c, &rollout->original, &rollout->original_words));
        else if (field == IMAGE) NEED(slice(c, &rollout->image, &n_words));
        else NEED(any_value(c, 0));
        next = more(c, '}');
    }
    NEED(next == 0);
    skip_space(c);
    NEED(c->p == c->end || *c->p == '\n');
    NEED((seen & STEPS) && (seen & IMAGE) && rollout->image.end > rollout->image.start);
    return rollout->original_words || rollout->question_words;
}

static void put_rollout(Out *out, const Rollout *rollout) {
    PUT(out, "{\"image\":\"");
    put_text(out, rollout->image, 0);
    PUT(out, "\",\"conversations\":[{\"from\":\"human\",\"value\":\"Question: ");
    put_text(out, rollout->original_words ? rollout->original : rollout->question, 1);
    PUT(out, "\\nProcess: ");
    for (int j = 0; j < rollout->n_steps; j++) {
        if (j) PUT(out, "\\n\\n");
        put_text(out, rollout->steps[j], 1);
        PUT(out, "<prm>");
    }
    PUT(out, "\"},{\"from\":\"gpt\",\"value\":[");
    for (int j = 0; j < rollout->n_steps; j++) {
        if (j) PUT(out, ",");
        if (rollout->is_positive[j]) PUT(out, "1.0");
        else PUT(out, "0.0");
    }
    PUT(out, "]}]}\n");
}

static PyObject *append_mm_prm(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer data;
    Py_ssize_t start, stop;
    double tau;
    PyObject *out;
    if (!PyArg_ParseTuple(args, "y*nndO!", &data, &start, &stop, &tau, &PyByteArray_Type, &out)) return NULL;
    PyObject *result = NULL;
    static Rollout rollout; /* large, and only one thread at a time is here: the GIL is held */
    memset(&rollout, 0, offsetof(Rollout, steps));
    rollout.n_steps = 0;
    rollout.question_words = rollout.original_words = 0;
    int is_good = 0;
    if (0 <= start && start < stop && stop <= data.len) {
        const unsigned char *bytes = data.buf;
        Cursor c = {bytes + start, bytes + stop, 0};
        is_good = record(&c, tau, &rollout);
    }
    if (is_good) {
        Py_ssize_t before = PyByteArray_GET_SIZE(out);
        /* what is put around the texts: less than 128 bytes, and 16 a step */
        Py_ssize_t room = (stop - start) + 128 + 16 * (Py_ssize_t)rollout.n_steps;
        if (PyByteArray_Resize(out, before + room) < 0) goto done;
        Out to = {(unsigned char *)PyByteArray_AS_STRING(out) + before, NULL};
        to.p = to.start;
        put_rollout(&to, &rollout);
        if (PyByteArray_Resize(out, before + (to.p - to.start)) < 0) goto done;
    }
    result = Py_NewRef(is_good ? Py_True : Py_False);
done:
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef methods[] = {
    {"append_mm_prm", append_mm_prm, METH_VARARGS,
     "append_mm_prm(data, start, stop, tau, out) -> whether the line's record was appended to out"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_mm_prm", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__mm_prm(void) { return PyModule_Create(&module); }
