/* Label counts of v1.1-Raw lines: the compiled twin of scan.count_rows_python.
 *
 * One pass over each line checks that it is JSON in UTF-8 and adds up what ranking and statistics
 * need. Whatever is not plainly right -- a field missing or of another type, a score out of range,
 * an empty step, a key given twice -- makes the line "odd": it is handed back, and Python looks at
 * it again and says what is wrong. So this file decides nothing; it only lets good lines pass fast.
 */
#include "../data/_json_cursor.h"

typedef struct { /* scan.ROW */
    uint32_t n_steps, n_pos, n_words, n_unsampled, source, kind, n_mc, n_leading;
    double sum_pos, sum_all;
    uint64_t n_bytes, problem;
} Row;

typedef struct { /* what is asked for besides the rows: the scores of all steps, and numbers of problems */
    double *scores;
    Py_ssize_t n_scores, room;
} Details;

enum { ROLLOUT = 0, BLANK = 1, ODD = 2 };
static const uint64_t FNV_BASIS = 0xCBF29CE484222325, FNV_PRIME = 0x100000001B3, GOLDEN = 0x9E3779B97F4A7C15;

static int add_score(Details *details, double s) {
    if (details->n_scores == details->room) {
        Py_ssize_t room = details->room ? details->room * 2 : 8192;
        double *scores = PyMem_Realloc(details->scores, (size_t)room * sizeof(double));
        NEED(scores);
        details->scores = scores;
        details->room = room;
    }
    details->scores[details->n_scores++] = s;
    return 1;
}

/* FNV-1a over the UTF-8 of a string's letters, from the bytes between its quotes, which were read before; white space
 * counts only where it is asked for. */
static uint64_t hashed(const unsigned char *start, Py_ssize_t n_bytes, int with_space, uint64_t hash) {
    Cursor c = {start, start + n_bytes, 0};
    while (c.p < c.end) {
        uint32_t point = *c.p;
        if (point == '\\') {
            c.p++;
            if (!escape(&c, &point)) break;
        } else if (point > 0x7F) {
            if (!wide(&c, &point)) break;
        } else {
            c.p++;
        }
        if (!with_space && Py_UNICODE_ISSPACE((Py_UCS4)point)) continue;
        unsigned char utf8[4];
        int n = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
        static const unsigned char first[5] = {0, 0, 0xC0, 0xE0, 0xF0};
        for (int i = n - 1; i > 0; i--, point >>= 6) utf8[i] = (unsigned char)(0x80 | (point & 0x3F));
        utf8[0] = (unsigned char)(first[n] | point);
        for (int i = 0; i < n; i++) hash = (hash ^ utf8[i]) * FNV_PRIME;
    }
    return hash;
}

static int step(Cursor *c, double tau, Row *row, Details *details) {
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
    row->sum_all += s;
    if (s > tau) {
        row->n_leading += row->n_pos == row->n_steps;
        row->n_pos++;
        row->sum_pos += s;
    }
    row->n_steps++;
    return !details || add_score(details, s);
}

static int steps(Cursor *c, double tau, Row *row, Details *details) {
    int next = 1;
    NEED(take(c, '['));
    while (next == 1) {
        NEED(step(c, tau, row, details));
        next = more(c, ']');
    }
    return next == 0;
}

/* A path; where it is asked for, the hash of its letters too. */
static int path(Cursor *c, Text *text, uint64_t *hash) {
    skip_space(c);
    const unsigned char *start = c->p + 1;
    NEED(string(c, 0, text));
    if (hash) *hash = hashed(start, text->n_bytes, 1, *hash);
    return 1;
}

/* A path, a list of paths, or null; none of them empty. */
static int image(Cursor *c, int *has_image, uint64_t *hash) {
    Text text;
    skip_space(c);
    NEED(c->p < c->end);
    if (*c->p == 'n') return word(c, "null", 4);
    if (*c->p == '"') {
        NEED(path(c, &text, hash));
        *has_image = text.n_bytes > 0;
        if (hash && *has_image) *hash = (*hash ^ 0xFF) * FNV_PRIME;
        return 1;
    }
    NEED(*c->p++ == '[');
    int next = 1;
    while (next == 1) {
        NEED(path(c, &text, hash) && text.n_bytes);
        if (hash) *hash = (*hash ^ 0xFF) * FNV_PRIME;
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

static int record(Cursor *c, int needs_image, double tau, PyObject *sources, Row *row, Details *details) {
    enum { STEPS = 1, QUESTION = 2, IMAGE = 4, SOURCE = 8, ORIGINAL = 16 };
    int seen = 0, has_image = 0, next = 1;
    uint64_t asked = FNV_BASIS, images = FNV_BASIS;
    const unsigned char *source = NULL, *question = NULL, *original = NULL;
    Text text, question_text = {0, 0}, source_text = {0, 0};
    Py_ssize_t original_bytes = 0;
    NEED(take(c, '{'));
    while (next == 1) {
        const unsigned char *name;
        Py_ssize_t length;
        NEED(key(c, &name, &length));
        int field = IS(name, length, "steps_with_score") ? STEPS : IS(name, length, "question") ? QUESTION
                  : IS(name, length, "image") ? IMAGE : IS(name, length, "source") ? SOURCE
                  : details && IS(name, length, "question_orig") ? ORIGINAL : 0;
        NEED(!(seen & field));
        seen |= field;
        if (field == STEPS) NEED(steps(c, tau, row, details));
        else if (field == QUESTION) {
            skip_space(c);
            question = c->p + 1;
            NEED(string(c, 1, &question_text) && question_text.n_words);
        }
        else if (field == IMAGE) NEED(image(c, &has_image, details ? &images : NULL));
        else if (field == ORIGINAL) {
            skip_space(c);
            NEED(c->p < c->end);
            original = c->p + 1;
            text.n_bytes = 0;
            NEED(*c->p == 'n' ? word(c, "null", 4) : string(c, 0, &text));
            original_bytes = text.n_bytes;
        }
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
    if (details) { /* the question without its prompt, where there is one */
        if (original_bytes) asked = hashed(original, original_bytes, 0, asked);
        if (asked == FNV_BASIS) asked = hashed(question, question_text.n_bytes, 0, asked);
        row->problem = asked ^ (images * GOLDEN);
    }
    return sources == Py_None || (source && source_number(source, source_text.n_bytes, sources, row));
}

static int holds(const unsigned char *p, const unsigned char *end, const char *mark, Py_ssize_t length) {
    while (end - p >= length && (p = memchr(p, mark[0], (size_t)(end - p - length + 1)))) {
        if (memcmp(p, mark, (size_t)length) == 0) return 1;
        p++;
    }
    return 0;
}

static PyObject *count_rows(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer data;
    Py_ssize_t place, stop, mark_length;
    int needs_image, with_details;
    double tau;
    PyObject *sources;
    const char *mark;
    if (!PyArg_ParseTuple(args, "y*nnpdOy#p", &data, &place, &stop, &needs_image, &tau, &sources, &mark, &mark_length,
                          &with_details))
        return NULL;
    PyObject *odd = PyList_New(0), *rows = PyByteArray_FromStringAndSize(NULL, 0), *scores = NULL, *result = NULL;
    Details details = {0};
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
        Cursor c = {line, end, 0};
        skip_space(&c);
        int is_blank = c.p == end || *c.p == '\n';
        Py_ssize_t n_before = details.n_scores;
        int is_good = !is_blank && record(&c, needs_image, tau, sources, &row, with_details ? &details : NULL);
        const unsigned char *newline = is_good || is_blank ? c.p : memchr(line, '\n', (size_t)(end - line));
        const unsigned char *line_end = newline && newline < end ? newline + 1 : end;
        if (is_blank) row.kind = BLANK;
        else if (!is_good || (mark_length && (c.hides || holds(line, line_end, mark, mark_length)))) {
            memset(&row, 0, sizeof row);
            row.kind = ODD;
            details.n_scores = n_before;
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
    scores = PyByteArray_FromStringAndSize((const char *)details.scores, details.n_scores * (Py_ssize_t)sizeof(double));
    if (scores && PyByteArray_Resize(rows, n_rows * (Py_ssize_t)sizeof(Row)) == 0)
        result = PyTuple_Pack(3, rows, odd, scores);
done:
    PyMem_Free(details.scores);
    Py_XDECREF(scores);
    Py_XDECREF(rows);
    Py_XDECREF(odd);
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef methods[] = {
    {"count_rows", count_rows, METH_VARARGS,
     "count_rows(data, place, stop, needs_image, tau, sources, mark, with_details) -> (rows, odd lines, scores)"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_scan", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__scan(void) { return PyModule_Create(&module); }
