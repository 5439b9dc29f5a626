/* Walking along one line of JSON, in UTF-8, without leaving it.
 *
 * Each function takes one thing and returns 1, or returns 0 for whatever is not plainly right; then
 * the line is "odd", and Python looks at it again and says what is wrong.
 */
#ifndef MPRM_JSON_CURSOR_H
#define MPRM_JSON_CURSOR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { MAX_DEPTH = 32 };

typedef struct {
    const unsigned char *p, *end; /* the rest of the data */
    int hides;                    /* whether a plain letter was met that is written as \u00.. */
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
    if (*point >= 0x20 && *point < 0x7F) c->hides = 1;
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

#endif
