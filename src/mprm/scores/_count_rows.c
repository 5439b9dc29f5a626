/* Label counts of v1.1-Raw lines: the compiled twin of count_rows.count_rows_python.
 *
 * One pass over each line checks that it is JSON in UTF-8 and adds up what ranking and statistics
 * need. Whatever is not plainly right -- a field missing or of another type, a score out of range,
 * an empty step, a key given twice -- makes the line "odd": it is handed back, and Python looks at
 * it again and says what is wrong. So this file decides nothing; it only lets good lines pass fast.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef struct { /* count_rows.ROW */
    uint32_t n_steps, n_pos, n_words, n_unsampled, source, kind, n_mc, unused;
    double sum_pos, sum_all;
    uint64_t n_bytes;
} Row;

enum { ROLLOUT = 0, BLANK = 1, ODD = 2 };
enum { MAX_DEPTH = 32 };

typedef struct {
    const unsigned char *p, *end; /* the rest of the data */
} Cursor;

typedef struct {
    uint32_t n_words; /* as len(text.split()) counts */
    Py_ssize_t n_bytes;
} Text;

static const double TEN_TO[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
                                1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

#if defined(__SSE2__)
/* Number of set bits of a byte; the instruction is not on every machine, and the library call is slow. */
#define B2(n) n, n + 1, n + 1, n + 2
#define B4(n) B2(n), B2(n + 1), B2(n + 1), B2(n + 2)
#define B6(n) B4(n), B4(n + 1), B4(n + 1), B4(n + 2)
static const unsigned char BITS[256] = {B6(0), B6(1), B6(1), B6(2)};
#endif

#define FAIL return 0
#define NEED(condition) do { if (!(condition)) FAIL; } while (0)

/* A line end is no space here: a record ends with its line. */
static inline void skip_space(Cursor *c) {
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\r' || *c->p == '\t')) c->p++;
}

static inline int take(Cursor *c, unsigned char wanted) {
    skip_space(c);
    NEED(c->p < c->end && *c->p == wanted);
    c->p++;
    return 1;
}

static int hex4(const unsigned char *p, uint32_t *value) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char h = p[i];
        uint32_t digit;
        if (h >= '0' && h <= '9') digit = h - '0';
        else if (h >= 'a' && h <= 'f') digit = h - 'a' + 10;
        else if (h >= 'A' && h <= 'F') digit = h - 'A' + 10;
        else FAIL;
        v = v << 4 | digit;
    }
    *value = v;
    return 1;
}

/* The code point of the escape after a backslash; p stands on the letter. */
static int escape(Cursor *c, uint32_t *point) {
    NEED(c->p < c->end);
    switch (*c->p++) {
    case '"': *point = '"'; return 1;
    case '\\': *point = '\\'; return 1;
    case '/': *point = '/'; return 1;
    case 'b': *point = 8; return 1;
    case 'f': *point = 12; return 1;
    case 'n': *point = 10; return 1;
    case 'r': *point = 13; return 1;
    case 't': *point = 9; return 1;
    case 'u': break;
    default: FAIL;
    }
    NEED(c->end - c->p >= 4 && hex4(c->p, point));
    c->p += 4;
    if (*point >= 0xD800 && *point <= 0xDFFF) { /* half of a pair: the other half must follow */
        uint32_t low;
        NEED(*point < 0xDC00 && c->end - c->p >= 6 && c->p[0] == '\\' && c->p[1] == 'u' && hex4(c->p + 2, &low));
        NEED(low >= 0xDC00 && low <= 0xDFFF);
        *point = 0x10000 + ((*point - 0xD800) << 10) + (low - 0xDC00);
        c->p += 6;
    }
    return 1;
}

/* The code point of a sequence of UTF-8 bytes that begins at p with a byte above 0x7F. */
static int wide(Cursor *c, uint32_t *point) {
    const unsigned char *p = c->p;
    Py_ssize_t left = c->end - p;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        NEED(left >= 2 && (p[1] & 0xC0) == 0x80);
        *point = (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
        c->p += 2;
    } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        NEED(left >= 3 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80);
        *point = (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
        NEED(*point >= 0x800 && (*point < 0xD800 || *point > 0xDFFF));
        c->p += 3;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        NEED(left >= 4 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80 && (p[3] & 0xC0) == 0x80);
        *point = (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 |
                 (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
        NEED(*point >= 0x10000 && *point <= 0x10FFFF);
        c->p += 4;
    } else FAIL;
    return 1;
}

/* Take a string; with count, count its words too. */
static inline int string(Cursor *c, int count, Text *text) {
    NEED(take(c, '"'));
    const unsigned char *start = c->p;
    uint32_t words = 0;
    unsigned in_word = 0; /* whether the letter before belongs to a word */
    for (;;) {
#if defined(__SSE2__)
        while (c->end - c->p >= 16) {
            __m128i x = _mm_loadu_si128((const __m128i *)c->p);
            /* signed: bytes below 0x20 and those above 0x7F are both less than a space */
            __m128i special = _mm_or_si128(
                _mm_cmplt_epi8(x, _mm_set1_epi8(0x20)),
                _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8('"')), _mm_cmpeq_epi8(x, _mm_set1_epi8('\\'))));
            unsigned stop = (unsigned)_mm_movemask_epi8(special);
            unsigned n = stop ? (unsigned)__builtin_ctz(stop) : 16;
            if (count && n) {
                unsigned letters = ~(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_set1_epi8(' ')));
                letters &= (1u << n) - 1;
                unsigned begins = letters & ~(letters << 1 | in_word);
                words += (uint32_t)BITS[begins & 0xFF] + BITS[begins >> 8 & 0xFF];
                in_word = letters >> (n - 1) & 1;
            }
            c->p += n;
            if (stop) break;
        }
#endif
        NEED(c->p < c->end);
        unsigned char byte = *c->p;
        uint32_t point = byte;
        if (byte == '"') break;
        if (byte < 0x20) FAIL;
        if (byte == '\\') {
            c->p++;
            NEED(escape(c, &point));
        } else if (byte > 0x7F) {
            NEED(wide(c, &point));
        } else {
            c->p++;
        }
        if (count) {
            unsigned letter = !Py_UNICODE_ISSPACE((Py_UCS4)point);
            words += letter & ~in_word;
            in_word = letter;
        }
    }
    if (text) {
        text->n_words = words;
        text->n_bytes = c->p - start;
    }
    c->p++;
    return 1;
}

/* A key without escapes, and the colon after it. */
static inline int key(Cursor *c, const unsigned char **name, Py_ssize_t *length) {
    skip_space(c);
    const unsigned char *start = c->p + 1;
    Text text;
    NEED(string(c, 0, &text));
    NEED(memchr(start, '\\', (size_t)text.n_bytes) == NULL);
    *name = start;
    *length = text.n_bytes;
    return take(c, ':');
}

#define IS(name, length, word) ((length) == sizeof(word) - 1 && memcmp(name, word, sizeof(word) - 1) == 0)

/* A number by JSON's grammar. */
static int number(Cursor *c, const unsigned char **first) {
    skip_space(c);
    const unsigned char *p = c->p, *end = c->end;
    *first = p;
    if (p < end && *p == '-') p++;
    NEED(p < end && *p >= '0' && *p <= '9');
    if (*p == '0') p++;
    else while (p < end && *p >= '0' && *p <= '9') p++;
    if (p < end && *p == '.') {
        p++;
        NEED(p < end && *p >= '0' && *p <= '9');
        while (p < end && *p >= '0' && *p <= '9') p++;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        NEED(p < end && *p >= '0' && *p <= '9');
        while (p < end && *p >= '0' && *p <= '9') p++;
    }
    c->p = p;
    return 1;
}

/* A score in [0, 1], as the nearest double. */
static int score(Cursor *c, double *value) {
    const unsigned char *first;
    NEED(number(c, &first));
    Py_ssize_t length = c->p - first;
    uint64_t digits = 0;
    int after_point = -1, simple = length <= 16;
    for (const unsigned char *p = first; simple && p < c->p; p++) {
        if (*p == '.') after_point = 0;
        else if (*p >= '0' && *p <= '9') {
            digits = digits * 10 + (*p - '0');
            if (after_point >= 0) after_point++;
        } else simple = 0;
    }
    if (simple) { /* both numbers are exact, so their quotient is rounded once, as strtod rounds */
        *value = after_point > 0 ? (double)digits / TEN_TO[after_point] : (double)digits;
    } else {
        char copy[64];
        NEED(length < (Py_ssize_t)sizeof copy);
        memcpy(copy, first, (size_t)length);
        copy[length] = 0;
        *value = PyOS_string_to_double(copy, NULL, NULL);
        if (*value == -1.0 && PyErr_Occurred()) {
            PyErr_Clear();
            FAIL;
        }
    }
    return *value >= 0.0 && *value <= 1.0 && *first != '-';
}

static int word(Cursor *c, const char *wanted, size_t length) {
    NEED((size_t)(c->end - c->p) >= length && memcmp(c->p, wanted, length) == 0);
    c->p += length;
    return 1;
}

/* A count of at most nine digits; null stands for none and gives -1. */
static int count_value(Cursor *c, int64_t *value) {
    const unsigned char *first;
    skip_space(c);
    if (c->p < c->end && *c->p == 'n') {
        *value = -1;
        return word(c, "null", 4);
    }
    NEED(number(c, &first) && c->p - first <= 9);
    *value = 0;
    for (const unsigned char *p = first; p < c->p; p++) {
        NEED(*p >= '0' && *p <= '9');
        *value = *value * 10 + (*p - '0');
    }
    return 1;
}

static int any_value(Cursor *c, int depth) {
    skip_space(c);
    NEED(c->p < c->end && depth < MAX_DEPTH);
    const unsigned char *first;
    switch (*c->p) {
    case '"': return string(c, 0, NULL);
    case 't': return word(c, "true", 4);
    case 'f': return word(c, "false", 5);
    case 'n': return word(c, "null", 4);
    case '[':
    case '{': {
        unsigned char open = *c->p++, close = open == '[' ? ']' : '}';
        skip_space(c);
        if (c->p < c->end && *c->p == close) {
            c->p++;
            return 1;
        }
        for (;;) {
            if (open == '{') {
                NEED(string(c, 0, NULL) && take(c, ':'));
            }
            NEED(any_value(c, depth + 1));
            skip_space(c);
            NEED(c->p < c->end);
            if (*c->p == close) {
                c->p++;
                return 1;
            }
            NEED(*c->p++ == ',');
        }
    }
    default: return number(c, &first);
    }
}

/* After a member or element: 1 for another one, 0 for the end, -1 for neither. */
static inline int more(Cursor *c, unsigned char close) {
    skip_space(c);
    if (c->p >= c->end) return -1;
    unsigned char byte = *c->p++;
    return byte == ',' ? 1 : byte == close ? 0 : -1;
}

static int step(Cursor *c, double tau, Row *row) {
    enum { STEP = 1, SCORE = 2, CORRECT = 4, TOTAL = 8 };
    int seen = 0, next = 1;
    double s = 0;
    int64_t correct = -1, total = -1;
    NEED(take(c, '{'));
    while (next == 1) {
        const unsigned char *name;
        Py_ssize_t length;
        NEED(key(c, &name, &length));
        int field = IS(name, length, "step") ? STEP : IS(name, length, "score") ? SCORE
                  : IS(name, length, "num_mc_correct") ? CORRECT : IS(name, length, "num_mc_total") ? TOTAL : 0;
        NEED(!(seen & field));
        seen |= field;
        if (field == STEP) {
            Text text;
            NEED(string(c, 1, &text) && text.n_words);
            row->n_words += text.n_words;
        } else if (field == SCORE) NEED(score(c, &s));
        else if (field == CORRECT) NEED(count_value(c, &correct));
        else if (field == TOTAL) NEED(count_value(c, &total));
        else NEED(any_value(c, 0));
        next = more(c, '}');
    }
    NEED(next == 0 && (seen & STEP) && (seen & SCORE));
    if (correct >= 0 && total >= 0) {
        double difference = s - (total ? (double)correct / (double)total : 0.0);
        NEED(correct <= total && difference < 1e-6 && difference > -1e-6);
    }
    if (total == 0) row->n_unsampled++;
    if (total > (int64_t)row->n_mc) row->n_mc = (uint32_t)total;
    row->n_steps++;
    row->sum_all += s;
    if (s > tau) {
        row->n_pos++;
        row->sum_pos += s;
    }
    return 1;
}

static int steps(Cursor *c, double tau, Row *row) {
    int next = 1;
    NEED(take(c, '['));
    while (next == 1) {
        NEED(step(c, tau, row));
        next = more(c, ']');
    }
    return next == 0;
}

/* A path, a list of paths, or null; none of them empty. */
static int image(Cursor *c, int *has_image) {
    Text text;
    skip_space(c);
    NEED(c->p < c->end);
    if (*c->p == 'n') return word(c, "null", 4);
    if (*c->p == '"') {
        NEED(string(c, 0, &text));
        *has_image = text.n_bytes > 0;
        return 1;
    }
    NEED(*c->p++ == '[');
    int next = 1;
    while (next == 1) {
        NEED(string(c, 0, &text) && text.n_bytes);
        next = more(c, ']');
    }
    *has_image = 1;
    return next == 0;
}

/* The number of a source, the next free one for a new name. */
static int source_number(const unsigned char *start, Py_ssize_t length, PyObject *sources, Row *row) {
    PyObject *name = PyUnicode_DecodeUTF8((const char *)start, length, NULL);
    PyObject *fresh = name ? PyLong_FromSsize_t(PyDict_GET_SIZE(sources)) : NULL;
    PyObject *number = fresh ? PyDict_SetDefault(sources, name, fresh) : NULL;
    if (number) row->source = (uint32_t)PyLong_AsUnsignedLong(number);
    Py_XDECREF(name);
    Py_XDECREF(fresh);
    if (!number) PyErr_Clear();
    return number != NULL;
}

static int record(Cursor *c, int needs_image, double tau, PyObject *sources, Row *row) {
    enum { STEPS = 1, QUESTION = 2, IMAGE = 4, SOURCE = 8 };
    int seen = 0, has_image = 0, next = 1;
    const unsigned char *source = NULL;
    Text text, source_text = {0, 0};
    NEED(take(c, '{'));
    while (next == 1) {
        const unsigned char *name;
        Py_ssize_t length;
        NEED(key(c, &name, &length));
        int field = IS(name, length, "steps_with_score") ? STEPS : IS(name, length, "question") ? QUESTION
                  : IS(name, length, "image") ? IMAGE : IS(name, length, "source") ? SOURCE : 0;
        NEED(!(seen & field));
        seen |= field;
        if (field == STEPS) NEED(steps(c, tau, row));
        else if (field == QUESTION) NEED(string(c, 1, &text) && text.n_words);
        else if (field == IMAGE) NEED(image(c, &has_image));
        else if (field == SOURCE) {
            NEED(sources != Py_None);
            skip_space(c);
            source = c->p + 1;
            NEED(string(c, 0, &source_text) && source_text.n_bytes);
            NEED(memchr(source, '\\', (size_t)source_text.n_bytes) == NULL);
        }
        else NEED(any_value(c, 0));
        next = more(c, '}');
    }
    NEED(next == 0);
    skip_space(c);
    NEED((c->p == c->end || *c->p == '\n') && (seen & STEPS) && (seen & QUESTION) && (has_image || !needs_image));
    return sources == Py_None || (source && source_number(source, source_text.n_bytes, sources, row));
}

static int holds(const unsigned char *p, const unsigned char *end, const char *mark, Py_ssize_t length) {
#if defined(__GLIBC__)
    return memmem(p, (size_t)(end - p), mark, (size_t)length) != NULL;
#endif
    while (end - p >= length && (p = memchr(p, mark[0], (size_t)(end - p - length + 1)))) {
        if (memcmp(p, mark, (size_t)length) == 0) return 1;
        p++;
    }
    return 0;
}

static PyObject *count_rows(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer data;
    Py_ssize_t place, stop, mark_length;
    int needs_image;
    double tau;
    PyObject *sources;
    const char *mark;
    if (!PyArg_ParseTuple(args, "y*nnpdOy#", &data, &place, &stop, &needs_image, &tau, &sources, &mark, &mark_length))
        return NULL;
    PyObject *odd = PyList_New(0), *rows = PyByteArray_FromStringAndSize(NULL, 0), *result = NULL;
    const unsigned char *start = data.buf, *end = start + data.len;
    Py_ssize_t n_rows = 0, room = 0;
    if (!odd || !rows) goto done;
    if (sources != Py_None && !PyDict_Check(sources)) {
        PyErr_SetString(PyExc_TypeError, "sources must be a dict or None");
        goto done;
    }
    while (place < stop && place < data.len) {
        const unsigned char *line = start + place;
        Row row = {0};
        Cursor c = {line, end};
        skip_space(&c);
        int is_blank = c.p == end || *c.p == '\n';
        int is_good = !is_blank && record(&c, needs_image, tau, sources, &row);
        const unsigned char *newline = is_good || is_blank ? c.p : memchr(line, '\n', (size_t)(end - line));
        const unsigned char *line_end = newline && newline < end ? newline + 1 : end;
        if (is_blank) row.kind = BLANK;
        else if (!is_good || (mark_length && holds(line, line_end, mark, mark_length))) {
            memset(&row, 0, sizeof row);
            row.kind = ODD;
            PyObject *where = Py_BuildValue("nnn", n_rows, place, (Py_ssize_t)(line_end - start));
            if (!where || PyList_Append(odd, where) < 0) {
                Py_XDECREF(where);
                goto done;
            }
            Py_DECREF(where);
        }
        row.n_bytes = (uint64_t)(line_end - line);
        if (n_rows == room) {
            room = room ? room * 2 : 1024;
            if (PyByteArray_Resize(rows, room * (Py_ssize_t)sizeof(Row)) < 0) goto done;
        }
        memcpy(PyByteArray_AS_STRING(rows) + n_rows * (Py_ssize_t)sizeof(Row), &row, sizeof row);
        n_rows++;
        place = line_end - start;
    }
    if (PyByteArray_Resize(rows, n_rows * (Py_ssize_t)sizeof(Row)) == 0) result = PyTuple_Pack(2, rows, odd);
done:
    Py_XDECREF(rows);
    Py_XDECREF(odd);
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef methods[] = {
    {"count_rows", count_rows, METH_VARARGS,
     "count_rows(data, place, stop, needs_image, tau, sources, mark) -> (rows, odd lines)"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_count_rows", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__count_rows(void) { return PyModule_Create(&module); }
