/* nvmlDeviceGetFieldValues: supported fields of this board, their types and current values. */

#include <string.h>

#include "fake.h"

enum { DOUBLE, U32, ULONG, U64, S64, S32, U16 };

struct field_answer {
    i64 timestamp, latency;
    u32 type, code;
    u64 value;
};

struct field_request {
    u32 field, scope;
    struct field_answer answer;
};

static int is_c2c_field(u32 field) { return (field >= 171 && field <= 172) || (field >= 231 && field <= 234); }

/* Errors per link up to Ampere: one field a link, without scope: links 0 to 5, the total, links 6 to 11. */
static int is_numbered_link_field(u32 field)
{
    return (field >= 32 && field <= 59) || (field >= 96 && field <= 119);
}

/* The link of such a field; -1 for the total of all links. */
static int numbered_link(u32 field)
{
    if (field >= 96)
        return 6 + (int)(field - 96) % 6;
    return (int)(field - 32) % 7 == 6 ? -1 : (int)(field - 32) % 7;
}

static int is_link_field(u32 field)
{
    if (is_numbered_link_field(field))
        return 0;
    return (field >= 32 && field <= 73) || (field >= 84 && field <= 89) || (field >= 96 && field <= 141) ||
           field == 146 || (field >= 148 && field <= 168) || (field >= 201 && field <= 222) ||
           (field >= 235 && field <= 250) || (field >= 289 && field <= 296);
}

static int is_total_field(u32 field) { return field >= 138 && field <= 141; }

/* The value type of a field; fields not listed here are unsigned 64-bit counts. */
static u32 type_of(u32 field)
{
    if (field == 308)
        return DOUBLE;
    if (field >= 193 && field <= 196)
        return S32;
    if (field == 1 || field == 2 || field == 31 || field == 82 || field == 91 || field == 94 || field == 95 ||
        (field >= 144 && field <= 147) || (field >= 164 && field <= 169) || (field >= 173 && field <= 190) ||
        field == 192 || (field >= 197 && field <= 198) || field == 230 || (field >= 170 && field <= 172) || field == 234)
        return U32;
    return U64;
}

static int is_supported(u32 field)
{
    const struct board *here = board();
    int nvlink5 = here->nvlink_version >= 7;

    if (field >= 1 && field <= 28)
        return here->ecc;
    if (field >= 29 && field <= 31)
        return here->retired_pages;
    if (field == 74 || field == 76 || (field >= 269 && field <= 271))
        return here->throttle_times;
    if (field == 75 || (field >= 77 && field <= 81))
        return here->throttle_times;
    if (field == 82)
        return here->memory_temperature;
    if (field == 83 || field == 94 || field == 95)
        return 1;
    if (field == 91)
        return here->links > 0;
    if (field >= 142 && field <= 145)
        return here->row_remap;
    if (field == 169 || (field >= 173 && field <= 183))
        return here->pcie_errors;
    if (field == 185)
        return here->power_average;
    if (field == 186 || (field >= 187 && field <= 190) || field == 192)
        return 1;
    if (field >= 193 && field <= 196)
        return here->temperature_limits;
    if (field == 197 || field == 198)
        return here->pcie_bytes;
    if (field == 230)
        return here->recovery_action;
    if (field == 308)
        return nvlink5;
    if (field == 170 || is_c2c_field(field))
        return here->c2c_links > 0;
    if (is_numbered_link_field(field)) /* drivers since 525 do not support them on Hopper */
        return here->links && here->nvlink_version < 6 && numbered_link(field) < here->links;
    if (!is_link_field(field) || !here->links)
        return 0;
    if (field >= 148 && field <= 159)
        return here->nvlink_version == 4;
    if (field >= 161 && field <= 163)
        return here->nvlink_version == 6;
    if ((field >= 138 && field <= 141) || field == 146 || (field >= 164 && field <= 166))
        return 1;
    if ((field >= 201 && field <= 222 && field != 205 && (field < 216 || field > 218)) ||
        (field >= 235 && field <= 250) || (field >= 289 && field <= 295))
        return nvlink5;
    return 0;
}

static u64 real_as_bits(double value)
{
    u64 bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Bytes a second on one link in one direction; links of one GPU have slightly different loads, as in reality. */
static double link_bytes_per_second(int gpu, u32 link)
{
    return board()->link_mbps * 1e6 * (0.30 + 0.01 * gpu + 0.002 * link);
}

static u64 link_total(const struct device *device, u32 scope, double factor)
{
    double rate = 0;
    u64 from = 0;
    for (u32 link = scope == ALL ? 0 : scope; link < (scope == ALL ? (u32)board()->links : scope + 1); link++) {
        rate += link_bytes_per_second(device->gpu, link) * factor;
        from += 1000000000ull * (link + 1);
    }
    return total(from, rate);
}

/* BER as the header packs it: exponent in bits 0-7, mantissa in bits 8-11. */
static u64 packed_ber(u32 mantissa, u32 exponent) { return mantissa << 8 | exponent; }

static u64 plausible(const struct device *device, u32 field, u32 scope)
{
    int gpu = device->gpu;
    u64 now = elapsed_us();
    double range = board()->limit_mw - board()->idle_mw;

    switch (field) {
    case 1: case 2: return 1;
    case 3: case 11: return (u64)gpu;                      /* corrected, volatile: device memory only */
    case 5: case 22: return 10 + (u64)gpu;
    case 74: return total(0, 2e7 * (gpu + 1));              /* ns at the power cap */
    case 76: return 0;
    case 82: return (u64)temperature_celsius(gpu, now) + 9;
    case 83: return total(600000, board()->idle_mw + 0.85 * range);
    case 91: return (u64)board()->links;
    case 94: return gpu == 3;
    case 138: return link_total(device, scope, 0.94) / 1024;
    case 139: return link_total(device, scope, 0.93) / 1024;
    case 140: return link_total(device, scope, 1.00) / 1024;
    case 141: return link_total(device, scope, 0.99) / 1024;
    case 142: return gpu == 5;
    case 146: return (scope + (u32)gpu * 3) % 18;
    case 164: return (u64)board()->link_mbps;
    case 165: return 1;
    case 166: return (u64)board()->nvlink_version;
    case 169: return 2;
    case 170: return (u64)board()->c2c_links;
    case 171: return 1;
    case 172: return (u64)board()->c2c_mbps;
    case 185: return board()->idle_mw + (u64)(0.85 * range);
    case 186: return power_mw(gpu, now) + (scope ? 85000 : 0);
    case 187: return board()->least_mw;
    case 188: return board()->most_mw;
    case 189: return board()->limit_mw;
    case 190: case 192: return power_limit_mw(device->gpu);
    case 193: return (u64)-5;
    case 194: return (u64)-2;
    case 195: case 196: return 0;
    case 197: return (u32)total(0, 1.2e9 * (1 + gpu / 16.0));  /* wraps at 32 bits, as the header warns */
    case 198: return (u32)total(0, 0.9e9 * (1 + gpu / 16.0));
    case 201: return link_total(device, scope, 1.0) / 272;
    case 202: return link_total(device, scope, 1.0);
    case 203: return link_total(device, scope, 0.99) / 272;
    case 204: return link_total(device, scope, 0.99);
    case 220: return packed_ber(1, 15);
    case 222: return packed_ber(3, 16);
    case 235: return total(1, 1e9);
    case 236: return total(0, 40);
    case 289: case 290: return total(scope, 12);
    case 291: case 292: case 293: return packed_ber(5, 9);
    case 294: return total(0, 1e8);
    case 308: return real_as_bits(temperature_celsius(gpu, now) + 0.25);
    default: return 0;
    }
}

int field_value(const struct device *device, u32 field, u32 scope, u32 *type, u64 *value)
{
    *type = type_of(field);
    *value = 0;
    for (int index = 0; index < FIELD_RULES && control->fields[index].active; index++) {
        const struct field_rule *rule = &control->fields[index];
        if (rule->field == field && (rule->gpu == ALL || rule->gpu == (u32)device->gpu) &&
            (rule->scope == ALL || rule->scope == scope)) {
            *type = rule->type;
            *value = rule->value;
            return (int)rule->code;
        }
    }
    if (field == 0 || field > 310)
        return INVALID_ARGUMENT;
    if (device->slot >= 0 || !is_supported(field))
        return NOT_SUPPORTED;
    if ((field == 185 || field == 186) && scope != 0 && !board()->c2c_links) /* no processor on the module */
        return NOT_SUPPORTED;
    if (is_c2c_field(field) && scope >= (u32)board()->c2c_links)
        return INVALID_ARGUMENT;
    if (is_link_field(field) && !(is_total_field(field) && scope == ALL) && scope >= (u32)board()->links)
        return INVALID_ARGUMENT;
    if (!control->pattern) {
        *value = plausible(device, field, scope);
        return SUCCESS;
    }
    *value = field * 1000ull + (u64)device->gpu * 100 + (scope == ALL ? 99 : scope);
    if (field == 91)
        *value = (u64)board()->links;
    if (field == 170)
        *value = (u64)board()->c2c_links;
    if (*type == DOUBLE)
        *value = real_as_bits((double)*value + 0.5);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetFieldValues(struct device *device, int count, struct field_request *requests)
{
    ENTER(device);
    i64 now = (i64)wall_us();
    for (int index = 0; index < count; index++) {
        struct field_answer *answer = &requests[index].answer;
        u32 type;
        u64 value;
        answer->code = (u32)field_value(device, requests[index].field, requests[index].scope, &type, &value);
        answer->timestamp = now;
        answer->latency = 1;
        answer->type = type;
        /* Narrow types leave the other bytes of the union unchanged. */
        if (type == U32 || type == S32)
            memcpy(&answer->value, &value, 4);
        else if (type == U16)
            memcpy(&answer->value, &value, 2);
        else
            answer->value = value;
    }
    return SUCCESS;
}
