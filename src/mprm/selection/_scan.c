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
    uint64_t n_bytes;
} Row;

enum { ROLLOUT = 0, BLANK = 1, ODD = 2 };
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
    row->sum_all += s;
    if (s > tau) {
        row->n_leading += row->n_pos == row->n_steps;
        row->n_pos++;
        row->sum_pos += s;
    }
    row->n_steps++;
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
        Cursor c = {line, end, 0};
        skip_space(&c);
        int is_blank = c.p == end || *c.p == '\n';
        int is_good = !is_blank && record(&c, needs_image, tau, sources, &row);
        const unsigned char *newline = is_good || is_blank ? c.p : memchr(line, '\n', (size_t)(end - line));
        const unsigned char *line_end = newline && newline < end ? newline + 1 : end;
        if (is_blank) row.kind = BLANK;
        else if (!is_good || (mark_length && (c.hides || holds(line, line_end, mark, mark_length)))) {
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

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_scan", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__scan(void) { return PyModule_Create(&module); }
